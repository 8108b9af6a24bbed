/* The chain: digest[i] = H(S((digest[i - 1], tokens of block i, extras of block i))). */
#ifndef PREFIXHASH_CHAIN_H
#define PREFIXHASH_CHAIN_H

#include "digest.h"
#include "encode.h"
#include "extras.h"
#include "ids.h"

typedef struct {
    size_t start, length;
} Piece;

typedef struct {
    /* What is hashed, and how. */
    Ids ids;
    Py_ssize_t block_size, num_blocks;
    int pickled, collision_resistant;
    Py_ssize_t digest_size;
    PyObject *digest; /* bytes -> bytes, where the kernel has no function of its own */
    PyObject *parent;
    Buffer extras;
    Piece *pieces; /* of `extras`, one per block; NULL where no block has any */
    size_t longest_extra;
    /* Working space and the result. */
    int64_t *tokens;
    unsigned char *message, *digests;
    Sha256 sha256;
} Chain;

static void chain_close(Chain *chain)
{
    ids_close(&chain->ids);
    PyMem_Free(chain->extras.data);
    PyMem_Free(chain->pieces);
    PyMem_Free(chain->tokens);
    PyMem_Free(chain->message);
    PyMem_Free(chain->digests);
}

static int encode_extra(Chain *chain, Py_ssize_t block, PyObject *extra)
{
    if (extra != Py_None && !PyTuple_CheckExact(extra)) {
        return 0;
    }
    if (!chain->pickled) {
        return cbor_extra(&chain->extras, extra, 0);
    }
    Memo memo;
    /* Written before: the parent, of which only the first can be an object of the caller's, and
     * the tuple of tokens. */
    memo.objects[0] = block == 0 ? chain->parent : NULL;
    memo.objects[1] = NULL;
    memo.count = 2;
    return pickle_extra(&chain->extras, extra, &memo, 0);
}

/* Encodes the extras; a run of one and the same tuple is encoded once. */
static int chain_extras(Chain *chain, PyObject *extras)
{
    if (extras == Py_None) {
        return 1;
    }
    if (!PyList_CheckExact(extras) || PyList_GET_SIZE(extras) != chain->num_blocks) {
        return 0;
    }
    chain->pieces = PyMem_New(Piece, chain->num_blocks);
    if (chain->pieces == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < chain->num_blocks; i++) {
        PyObject *extra = PyList_GET_ITEM(extras, i);
        /* Not block 0's: there the pickle can refer to the parent. */
        if (i > 1 && extra == PyList_GET_ITEM(extras, i - 1)) {
            chain->pieces[i] = chain->pieces[i - 1];
            continue;
        }
        size_t start = chain->extras.size;
        int done = encode_extra(chain, i, extra);
        if (done < 1) {
            return done;
        }
        chain->pieces[i].start = start;
        chain->pieces[i].length = chain->extras.size - start;
        if (chain->pieces[i].length > chain->longest_extra) {
            chain->longest_extra = chain->pieces[i].length;
        }
    }
    return 1;
}

static int chain_allocate(Chain *chain)
{
    size_t block_size = (size_t)chain->block_size, num_blocks = (size_t)chain->num_blocks;
    size_t message = (size_t)PyBytes_GET_SIZE(chain->parent) + chain->longest_extra + MAX_DIGEST
                     + 10 * block_size + 64 + PADDING + SLACK;
    chain->tokens = PyMem_New(int64_t, block_size);
    chain->message = PyMem_Malloc(message);
    chain->digests = PyMem_Malloc(num_blocks * (size_t)chain->digest_size);
    if (chain->tokens == NULL || chain->message == NULL || chain->digests == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    return 1;
}

static unsigned char *put_extra(const Chain *chain, unsigned char *to, Py_ssize_t block)
{
    if (chain->pieces == NULL) {
        *to++ = chain->pickled ? PICKLE_NONE : CBOR_NULL;
        return to;
    }
    const Piece *piece = &chain->pieces[block];
    return put_bytes(to, chain->extras.data + piece->start, piece->length);
}

static size_t cbor_message(Chain *chain, Py_ssize_t block, const void *parent, size_t parent_size)
{
    Py_ssize_t count = chain->block_size;
    const int64_t *tokens = chain->tokens;
    unsigned char *to = cbor_head(chain->message, CBOR_ARRAY, 3);
    to = put_bytes(cbor_head(to, CBOR_BYTES, parent_size), parent, parent_size);
    to = cbor_head(to, CBOR_ARRAY, (uint64_t)count);
    for (Py_ssize_t i = 0; i < count; i++) {
        to = cbor_id(to, (uint64_t)tokens[i]);
    }
    return (size_t)(put_extra(chain, to, block) - chain->message);
}

/* The length of the message, or 0 where the pickler would write more than one frame. */
static size_t pickle_message(Chain *chain, Py_ssize_t block, const void *parent, size_t parent_size)
{
    Py_ssize_t count = chain->block_size;
    const int64_t *tokens = chain->tokens;
    unsigned char *body = chain->message + PICKLE_PREFIX;
    unsigned char *to = pickle_head(body, PICKLE_SHORT_BINBYTES, PICKLE_BINBYTES, parent_size);
    to = put_bytes(to, parent, parent_size);
    *to++ = PICKLE_MEMOIZE;
    to = pickle_tuple_start(to, count);
    for (Py_ssize_t i = 0; i < count; i++) {
        to = pickle_id(to, (uint64_t)tokens[i]);
    }
    to = pickle_tuple_end(to, count);
    to = pickle_tuple_end(put_extra(chain, to, block), 3);
    *to++ = PICKLE_STOP;
    if (to - body >= PICKLE_FRAME_LIMIT) {
        return 0;
    }
    unsigned char *start = chain->message;
    *start++ = PICKLE_PROTO;
    *start++ = PICKLE_VERSION;
    *start++ = PICKLE_FRAME;
    put_little_endian(start, (uint64_t)(to - body), 8);
    return (size_t)(to - chain->message);
}

static int digest_in_python(Chain *chain, size_t length, unsigned char *out)
{
    PyObject *result = NULL;
    PyObject *message = PyBytes_FromStringAndSize((char *)chain->message, (Py_ssize_t)length);
    if (message != NULL) {
        result = PyObject_CallOneArg(chain->digest, message);
        Py_DECREF(message);
    }
    if (result == NULL) {
        return -1;
    }
    int good = PyBytes_CheckExact(result) && PyBytes_GET_SIZE(result) == chain->digest_size;
    if (good) {
        memcpy(out, PyBytes_AS_STRING(result), (size_t)chain->digest_size);
    }
    Py_DECREF(result);
    return good;
}

static int chain_is_native(const Chain *chain)
{
    return chain->collision_resistant ? HAS_SHA256 : HAS_XXH3;
}

static int chain_digest(Chain *chain, size_t length, unsigned char *out)
{
    if (!chain_is_native(chain)) {
        return digest_in_python(chain, length, out);
    }
    if (chain->collision_resistant) {
        sha256_chained(&chain->sha256, chain->message, length, out);
    } else {
        xxh3_canonical(chain->message, length, out);
    }
    return 1;
}

/* Computes all digests. Touches no Python object if `chain_is_native`. */
static int chain_run(Chain *chain)
{
    const void *parent = PyBytes_AS_STRING(chain->parent);
    size_t parent_size = (size_t)PyBytes_GET_SIZE(chain->parent);
    unsigned char *out = chain->digests;
    if (chain->collision_resistant) {
        sha256_begin(&chain->sha256);
    }
    for (Py_ssize_t i = 0; i < chain->num_blocks; i++) {
        if (!ids_load(&chain->ids, i * chain->block_size, chain->block_size, chain->tokens)) {
            return 0;
        }
        size_t length = chain->pickled ? pickle_message(chain, i, parent, parent_size)
                                       : cbor_message(chain, i, parent, parent_size);
        int done = length == 0 ? 0 : chain_digest(chain, length, out);
        if (done < 1) {
            return done;
        }
        parent = out;
        parent_size = (size_t)chain->digest_size;
        out += chain->digest_size;
    }
    return 1;
}

/* The ids behind the last full block are not hashed, but they are refused like the others. */
static int chain_check_rest(Chain *chain)
{
    int64_t id;
    for (Py_ssize_t i = chain->num_blocks * chain->block_size; i < chain->ids.count; i++) {
        if (!ids_load(&chain->ids, i, 1, &id)) {
            return 0;
        }
    }
    return 1;
}

static PyObject *chain_result(const Chain *chain)
{
    const char *digest = (const char *)chain->digests;
    PyObject *list = PyList_New(chain->num_blocks);
    for (Py_ssize_t i = 0; list != NULL && i < chain->num_blocks; i++) {
        PyObject *bytes = PyBytes_FromStringAndSize(digest, chain->digest_size);
        if (bytes == NULL) {
            Py_CLEAR(list);
            break;
        }
        PyList_SET_ITEM(list, i, bytes);
        digest += chain->digest_size;
    }
    return list;
}

#endif
