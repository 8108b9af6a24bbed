/* Token ids as they come in: a list or tuple of ints, or a buffer of integers.
 *
 * Everything here answers 1 (done), 0 (odd: the Python reference decides and words the error) or
 * -1 (a Python error is set). No Python code runs while a list is read, so it cannot change.
 */
#ifndef PREFIXHASH_IDS_H
#define PREFIXHASH_IDS_H

#include <Python.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__) || defined(__clang__)
#define PREFETCH(address) __builtin_prefetch(address)
#else
#define PREFETCH(address) ((void)0)
#endif

typedef struct {
    const char *data;
    Py_ssize_t count;
    Py_ssize_t stride;
    char kind; /* b B h H i I q Q: width and sign, whatever the platform calls them */
    int has_view;
    Py_buffer view;
    int64_t *owned;
} Ids;

static void ids_close(Ids *ids)
{
    if (ids->has_view) {
        PyBuffer_Release(&ids->view);
        ids->has_view = 0;
    }
    PyMem_Free(ids->owned);
    ids->owned = NULL;
}

/* A value in [0, 2**63), or -1 for whatever else; never sets an error. */
static inline int64_t id_of_object(PyObject *item)
{
    if (!PyLong_CheckExact(item)) {
        return -1;
    }
#if PY_VERSION_HEX >= 0x030C0000
    if (PyUnstable_Long_IsCompact((PyLongObject *)item)) {
        return (int64_t)PyUnstable_Long_CompactValue((PyLongObject *)item);
    }
#else
    if (Py_SIZE(item) == 1) {
        return (int64_t)((PyLongObject *)item)->ob_digit[0];
    }
#endif
    int overflow = 0;
    long long value = PyLong_AsLongLongAndOverflow(item, &overflow);
    return overflow ? -1 : (int64_t)value;
}

/* Converts `count` objects; 0 if one of them is no exact int in [0, 2**63). */
static int ids_from_objects(PyObject *const *items, Py_ssize_t count, int64_t *out)
{
    /* The int objects lie scattered: fetch ahead of use. */
    enum { AHEAD = 12 };
    int64_t all = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (i + AHEAD < count) {
            PREFETCH(items[i + AHEAD]);
        }
        out[i] = id_of_object(items[i]);
        all |= out[i];
    }
    return all >= 0;
}

static char kind_of_format(const char *format, Py_ssize_t itemsize)
{
    static const char by_size[2][9] = {"\0bh\0i\0\0\0q", "\0BH\0I\0\0\0Q"};
    if (format == NULL || format[0] == '\0' || format[1] != '\0' || itemsize > 8) {
        return 0;
    }
    if (strchr("bhilqn", format[0])) {
        return by_size[0][itemsize];
    }
    return strchr("BHILQN", format[0]) ? by_size[1][itemsize] : 0;
}

/* Only the types whose `tolist()` gives exactly what lies in their buffer: not a masked array. */
static int is_plain_buffer(PyObject *value, PyTypeObject *array_type)
{
    PyTypeObject *type = Py_TYPE(value);
    return type == array_type || type == &PyMemoryView_Type
           || strcmp(type->tp_name, "numpy.ndarray") == 0;
}

static int ids_from_buffer(PyObject *value, Ids *ids)
{
    if (PyObject_GetBuffer(value, &ids->view, PyBUF_STRIDED_RO | PyBUF_FORMAT) < 0) {
        if (PyErr_ExceptionMatches(PyExc_MemoryError)) {
            return -1;
        }
        PyErr_Clear();
        return 0;
    }
    ids->has_view = 1;
    if (ids->view.ndim != 1) {
        return 0;
    }
    ids->kind = kind_of_format(ids->view.format, ids->view.itemsize);
    ids->data = ids->view.buf;
    ids->count = ids->view.shape[0];
    ids->stride = ids->view.strides[0];
    return ids->kind != 0;
}

/* Opens `value` for reading; call `ids_close` whatever the answer. */
static int ids_open(PyObject *value, PyTypeObject *array_type, Ids *ids)
{
    memset(ids, 0, sizeof *ids);
    if (!PyList_CheckExact(value) && !PyTuple_CheckExact(value)) {
        return is_plain_buffer(value, array_type) ? ids_from_buffer(value, ids) : 0;
    }
    ids->count = PySequence_Fast_GET_SIZE(value);
    ids->owned = PyMem_New(int64_t, ids->count);
    if (ids->owned == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    ids->data = (const char *)ids->owned;
    ids->stride = sizeof(int64_t);
    ids->kind = 'q';
    return ids_from_objects(PySequence_Fast_ITEMS(value), ids->count, ids->owned);
}

#define LOAD(type)                                                                                 \
    for (Py_ssize_t i = 0; i < count; i++) {                                                       \
        type value; /* copied: a buffer may start at any address */                                \
        memcpy(&value, from, sizeof value);                                                        \
        out[i] = (int64_t)value;                                                                   \
        all |= out[i];                                                                             \
        from += stride;                                                                            \
    }                                                                                              \
    break

/* Copies ids [start, start + count) to `out`; 0 if one of them is outside [0, 2**63). */
static int ids_load(const Ids *ids, Py_ssize_t start, Py_ssize_t count, int64_t *out)
{
    Py_ssize_t stride = ids->stride;
    const char *from = ids->data + start * stride;
    int64_t all = 0;
    switch (ids->kind) {
    case 'b': LOAD(int8_t);
    case 'B': LOAD(uint8_t);
    case 'h': LOAD(int16_t);
    case 'H': LOAD(uint16_t);
    case 'i': LOAD(int32_t);
    case 'I': LOAD(uint32_t);
    case 'Q': LOAD(uint64_t);
    default: LOAD(int64_t);
    }
    return all >= 0;
}

#undef LOAD

#endif
