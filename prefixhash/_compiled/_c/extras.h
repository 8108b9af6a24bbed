/* The extras of the blocks: nested tuples of str, bytes, int and None, encoded one after another.
 *
 * As in ids.h, 0 means odd: a type, size or depth that is left to the Python reference.
 */
#ifndef PREFIXHASH_EXTRAS_H
#define PREFIXHASH_EXTRAS_H

#include "encode.h"

enum { MAX_DEPTH = 16, MAX_MEMO = 128 };

typedef struct {
    unsigned char *data;
    size_t size;
    size_t capacity;
} Buffer;

/* The objects that the pickler has written so far; each occurs again as its index. */
typedef struct {
    PyObject *objects[MAX_MEMO];
    int count;
} Memo;

static int buffer_reserve(Buffer *buffer, size_t more)
{
    size_t needed = buffer->size + more + SLACK;
    if (needed <= buffer->capacity) {
        return 1;
    }
    size_t capacity = needed + needed / 2 + 256;
    unsigned char *data = PyMem_Realloc(buffer->data, capacity);
    if (data == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    buffer->data = data;
    buffer->capacity = capacity;
    return 1;
}

/* The bytes of a str (UTF-8) or bytes object, borrowed. */
static int text_or_bytes(PyObject *value, const char **data, Py_ssize_t *length)
{
    if (PyBytes_CheckExact(value)) {
        *data = PyBytes_AS_STRING(value);
        *length = PyBytes_GET_SIZE(value);
        return 1;
    }
    if (!PyUnicode_CheckExact(value)) {
        return 0;
    }
    *data = PyUnicode_AsUTF8AndSize(value, length);
    if (*data != NULL) {
        return 1;
    }
    if (PyErr_ExceptionMatches(PyExc_MemoryError)) {
        return -1;
    }
    PyErr_Clear(); /* a lone surrogate */
    return 0;
}

static int small_int(PyObject *value, int64_t *out)
{
    int overflow = 0;
    if (!PyLong_CheckExact(value)) {
        return 0;
    }
    *out = PyLong_AsLongLongAndOverflow(value, &overflow);
    return !overflow;
}

static unsigned char *put_bytes(unsigned char *to, const void *data, size_t length)
{
    memcpy(to, data, length);
    return to + length;
}

static int cbor_extra(Buffer *buffer, PyObject *value, int depth);

static int cbor_tuple(Buffer *buffer, PyObject *value, int depth)
{
    Py_ssize_t length = PyTuple_GET_SIZE(value);
    int done = buffer_reserve(buffer, SLACK);
    if (done < 1 || depth >= MAX_DEPTH) {
        return done < 0 ? -1 : 0;
    }
    unsigned char *to = buffer->data + buffer->size;
    buffer->size = (size_t)(cbor_head(to, CBOR_ARRAY, (uint64_t)length) - buffer->data);
    for (Py_ssize_t i = 0; i < length; i++) {
        done = cbor_extra(buffer, PyTuple_GET_ITEM(value, i), depth + 1);
        if (done < 1) {
            return done;
        }
    }
    return 1;
}

static int cbor_extra(Buffer *buffer, PyObject *value, int depth)
{
    const char *data = NULL;
    Py_ssize_t length = 0;
    int64_t number = 0;
    int is_null = value == Py_None, is_int = small_int(value, &number);
    if (PyTuple_CheckExact(value)) {
        return cbor_tuple(buffer, value, depth);
    }
    int done = is_null || is_int ? 1 : text_or_bytes(value, &data, &length);
    if (done == 1) {
        done = buffer_reserve(buffer, (size_t)length + SLACK);
    }
    if (done < 1) {
        return done;
    }
    unsigned char *to = buffer->data + buffer->size;
    if (is_null) {
        *to++ = CBOR_NULL;
    } else if (is_int) {
        to = number < 0 ? cbor_head(to, CBOR_NEGATIVE, (uint64_t)(-1 - number))
                        : cbor_head(to, CBOR_UNSIGNED, (uint64_t)number);
    } else {
        to = cbor_head(to, PyBytes_CheckExact(value) ? CBOR_BYTES : CBOR_TEXT, (uint64_t)length);
        to = put_bytes(to, data, (size_t)length);
    }
    buffer->size = (size_t)(to - buffer->data);
    return 1;
}

static int pickle_extra(Buffer *buffer, PyObject *value, Memo *memo, int depth);

static int remember(Memo *memo, PyObject *value)
{
    if (memo->count == MAX_MEMO) {
        return 0;
    }
    memo->objects[memo->count++] = value;
    return 1;
}

static int pickle_tuple(Buffer *buffer, PyObject *value, Memo *memo, int depth)
{
    Py_ssize_t length = PyTuple_GET_SIZE(value);
    int done = buffer_reserve(buffer, SLACK);
    if (done < 1 || depth >= MAX_DEPTH) {
        return done < 0 ? -1 : 0;
    }
    if (length == 0) {
        buffer->data[buffer->size++] = PICKLE_EMPTY_TUPLE;
        return 1;
    }
    unsigned char *to = pickle_tuple_start(buffer->data + buffer->size, length);
    buffer->size = (size_t)(to - buffer->data);
    for (Py_ssize_t i = 0; i < length; i++) {
        done = pickle_extra(buffer, PyTuple_GET_ITEM(value, i), memo, depth + 1);
        if (done < 1) {
            return done;
        }
    }
    done = buffer_reserve(buffer, SLACK);
    if (done < 1) {
        return done;
    }
    to = pickle_tuple_end(buffer->data + buffer->size, length);
    buffer->size = (size_t)(to - buffer->data);
    return remember(memo, value);
}

/* None and ints: written as they are, however often they occur. */
static int pickle_atom(Buffer *buffer, PyObject *value)
{
    int64_t number = 0;
    int is_int = small_int(value, &number);
    if (!is_int && value != Py_None) {
        return 0;
    }
    int done = buffer_reserve(buffer, SLACK);
    if (done < 1) {
        return done;
    }
    unsigned char *to = buffer->data + buffer->size;
    if (is_int) {
        to = pickle_int(to, number);
    } else {
        *to++ = PICKLE_NONE;
    }
    buffer->size = (size_t)(to - buffer->data);
    return 1;
}

static int pickle_text_or_bytes(Buffer *buffer, PyObject *value, Memo *memo)
{
    const char *data = NULL;
    Py_ssize_t length = 0;
    int done = text_or_bytes(value, &data, &length);
    if (done == 1) {
        done = length >= PICKLE_FRAME_LIMIT ? 0 : buffer_reserve(buffer, (size_t)length + SLACK);
    }
    if (done < 1) {
        return done;
    }
    int is_bytes = PyBytes_CheckExact(value);
    unsigned char *to = pickle_head(
        buffer->data + buffer->size, is_bytes ? PICKLE_SHORT_BINBYTES : PICKLE_SHORT_BINUNICODE,
        is_bytes ? PICKLE_BINBYTES : PICKLE_BINUNICODE, (uint64_t)length);
    to = put_bytes(to, data, (size_t)length);
    *to++ = PICKLE_MEMOIZE;
    buffer->size = (size_t)(to - buffer->data);
    return remember(memo, value);
}

static int pickle_extra(Buffer *buffer, PyObject *value, Memo *memo, int depth)
{
    int done = pickle_atom(buffer, value);
    if (done != 0) {
        return done;
    }
    for (int i = 0; i < memo->count; i++) {
        if (memo->objects[i] == value) {
            done = buffer_reserve(buffer, SLACK);
            if (done == 1) {
                buffer->data[buffer->size++] = PICKLE_BINGET;
                buffer->data[buffer->size++] = (unsigned char)i;
            }
            return done;
        }
    }
    if (PyTuple_CheckExact(value)) {
        return pickle_tuple(buffer, value, memo, depth);
    }
    return pickle_text_or_bytes(buffer, value, memo);
}

#endif
