/* prefixhash._compiled.native: what `hashing/_chain_py.py` and `_tokens.py` do, in C.
 *
 * Each function returns None where its input is odd in any way; the caller then takes the Python
 * reference, which decides and words the errors. So there is one meaning, and nothing here raises
 * but for lack of memory.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "chain.h"
#include "ids.h"

/* From this many blocks on the GIL is released: below, handing it over costs more than hashing. */
enum { GIL_BLOCKS = 64 };

typedef struct {
    PyTypeObject *array_type;
    PyObject *one_zero; /* array('q', [0]) */
} State;

static State *state_of(PyObject *module)
{
    return (State *)PyModule_GetState(module);
}

static int run_without_gil(Chain *chain)
{
    int done;
    if (!chain_is_native(chain) || chain->num_blocks < GIL_BLOCKS) {
        return chain_run(chain);
    }
    Py_BEGIN_ALLOW_THREADS
    done = chain_run(chain);
    Py_END_ALLOW_THREADS
    return done;
}

/* Restricts the ids to the slice [start, stop); 0 if it does not lie within them. */
static int take_window(Ids *ids, PyObject *start, PyObject *stop)
{
    Py_ssize_t first = PyLong_AsSsize_t(start);
    Py_ssize_t last = stop == Py_None ? ids->count : PyLong_AsSsize_t(stop);
    if (PyErr_Occurred()) {
        return -1;
    }
    if (first < 0 || last < first || last > ids->count) {
        return 0;
    }
    ids->data += first * ids->stride;
    ids->count = last - first;
    return 1;
}

static int hash_ids(Chain *chain, PyObject *const *args, PyTypeObject *array_type)
{
    int done = ids_open(args[3], array_type, &chain->ids);
    if (done == 1) {
        done = take_window(&chain->ids, args[6], args[7]);
    }
    if (done < 1) {
        return done;
    }
    chain->num_blocks = chain->ids.count / chain->block_size;
    done = chain_check_rest(chain);
    if (done == 1) {
        done = chain_extras(chain, args[5]);
    }
    if (done == 1 && chain->num_blocks > 0) {
        done = chain_allocate(chain);
        if (done == 1) {
            done = run_without_gil(chain);
        }
    }
    return done;
}

PyDoc_STRVAR(hash_blocks_doc,
"hash_blocks(algorithm, digest, parent, token_ids, block_size, extras, start, stop)\n--\n\n"
"Digests of the full blocks of token_ids[start:stop] as a list; None where the reference has to\n"
"decide. algorithm: digest size, plus 1 for pickle; extras: None, or a list with one entry per\n"
"block.");

static PyObject *hash_blocks(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 8) {
        PyErr_Format(PyExc_TypeError, "hash_blocks takes 8 arguments, not %zd", nargs);
        return NULL;
    }
    Chain chain;
    memset(&chain, 0, offsetof(Chain, sha256));
    long algorithm = PyLong_AsLong(args[0]);
    chain.digest = args[1];
    chain.parent = args[2];
    chain.block_size = PyLong_AsSsize_t(args[4]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (!PyBytes_CheckExact(chain.parent) || chain.block_size < 1) {
        Py_RETURN_NONE;
    }
    chain.pickled = algorithm & 1;
    chain.digest_size = algorithm & ~1L;
    chain.collision_resistant = chain.digest_size == 32;
    int done = hash_ids(&chain, args, state_of(module)->array_type);
    PyObject *result = NULL;
    if (done == 1) {
        result = chain_result(&chain);
    } else if (done == 0) {
        result = Py_NewRef(Py_None);
    }
    chain_close(&chain);
    return result;
}

/* Fills `array`, a new array('q'). Its length is compared again: making it may have run a garbage
 * collection, and that anything. */
static int fill_array(PyObject *array, PyObject *value, PyTypeObject *array_type)
{
    Py_buffer target;
    Ids ids;
    if (PyObject_GetBuffer(array, &target, PyBUF_WRITABLE) < 0) {
        return -1;
    }
    int done;
    Py_ssize_t count = target.len / (Py_ssize_t)sizeof(int64_t);
    if (PyList_CheckExact(value) || PyTuple_CheckExact(value)) {
        done = PySequence_Fast_GET_SIZE(value) == count
               && ids_from_objects(PySequence_Fast_ITEMS(value), count, target.buf);
    } else {
        done = ids_open(value, array_type, &ids);
        if (done == 1) {
            done = ids.count == count && ids_load(&ids, 0, count, target.buf);
        }
        ids_close(&ids);
    }
    PyBuffer_Release(&target);
    return done;
}

static Py_ssize_t count_of(PyObject *value, PyTypeObject *array_type)
{
    if (PyList_CheckExact(value) || PyTuple_CheckExact(value)) {
        return PySequence_Fast_GET_SIZE(value);
    }
    return is_plain_buffer(value, array_type) ? PyObject_Size(value) : -1;
}

/* Whether `value` is an array('q') of good ids already. */
static int is_good_array(PyObject *value, PyTypeObject *array_type)
{
    Ids ids;
    if (!Py_IS_TYPE(value, array_type)) {
        return 0;
    }
    int done = ids_open(value, array_type, &ids);
    if (done == 1) {
        done = ids.view.format[0] == 'q';
        int64_t all = 0, id;
        for (Py_ssize_t i = 0; done == 1 && i < ids.count; i++) {
            memcpy(&id, ids.data + i * (Py_ssize_t)sizeof id, sizeof id);
            all |= id;
        }
        done = done == 1 && all >= 0;
    }
    ids_close(&ids);
    return done;
}

PyDoc_STRVAR(token_array_doc,
"token_array(value)\n--\n\n"
"The ids in a list, tuple or plain buffer as an array('q'), value itself if it is one; None where\n"
"the reference has to decide.");

static PyObject *token_array(PyObject *module, PyObject *value)
{
    State *state = state_of(module);
    int done = is_good_array(value, state->array_type);
    if (done != 0) {
        return done < 0 ? NULL : Py_NewRef(value);
    }
    Py_ssize_t count = count_of(value, state->array_type);
    if (count < 0) {
        PyErr_Clear(); /* no length: a released memoryview, an array without dimensions */
        Py_RETURN_NONE;
    }
    PyObject *array = PySequence_Repeat(state->one_zero, count);
    if (array == NULL) {
        return NULL;
    }
    done = fill_array(array, value, state->array_type);
    if (done == 1) {
        return array;
    }
    Py_DECREF(array);
    if (done < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"hash_blocks", (PyCFunction)(void (*)(void))hash_blocks, METH_FASTCALL, hash_blocks_doc},
    {"token_array", token_array, METH_O, token_array_doc},
    {NULL, NULL, 0, NULL},
};

static int module_exec(PyObject *module)
{
    State *state = state_of(module);
    PyObject *array = PyImport_ImportModule("array");
    if (array == NULL) {
        return -1;
    }
    state->array_type = (PyTypeObject *)PyObject_GetAttrString(array, "array");
    Py_DECREF(array);
    if (state->array_type == NULL) {
        return -1;
    }
    state->one_zero = PyObject_CallFunction((PyObject *)state->array_type, "s[i]", "q", 0);
    if (state->one_zero == NULL
        || PyModule_AddStringConstant(module, "SHA256_SOURCE", SHA256_SOURCE) < 0
        || PyModule_AddStringConstant(module, "XXH3_SOURCE", XXH3_SOURCE) < 0) {
        return -1;
    }
    return 0;
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    State *state = state_of(module);
    Py_VISIT(state->array_type);
    Py_VISIT(state->one_zero);
    return 0;
}

static int module_clear(PyObject *module)
{
    State *state = state_of(module);
    Py_CLEAR(state->array_type);
    Py_CLEAR(state->one_zero);
    return 0;
}

static void module_free(void *module)
{
    module_clear((PyObject *)module);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, module_exec},
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "native",
    .m_doc = "The hash chain and the reading of token ids, in C.",
    .m_size = sizeof(State),
    .m_methods = methods,
    .m_slots = slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC PyInit_native(void)
{
    return PyModuleDef_Init(&definition);
}
