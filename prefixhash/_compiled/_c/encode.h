/* The bytes of a block's key, as `_cbor.encode` and `pickle.dumps(key, 5)` write them. */
#ifndef PREFIXHASH_ENCODE_H
#define PREFIXHASH_ENCODE_H

#include <Python.h>
#include <stdint.h>
#include <string.h>

/* Room that the writers below may use behind what they return. */
enum { SLACK = 16 };

/* --- CBOR ------------------------------------------------------------------------------------ */

enum { CBOR_UNSIGNED, CBOR_NEGATIVE, CBOR_BYTES, CBOR_TEXT, CBOR_ARRAY, CBOR_NULL = 0xf6 };

static unsigned char *put_big_endian(unsigned char *to, uint64_t value, int width)
{
    for (int i = width - 1; i >= 0; i--) {
        *to++ = (unsigned char)(value >> (8 * i));
    }
    return to;
}

static unsigned char *cbor_head(unsigned char *to, int major, uint64_t argument)
{
    int first = major << 5;
    if (argument < 24) {
        *to++ = (unsigned char)(first | (int)argument);
        return to;
    }
    int power = (argument > 0xff) + (argument > 0xffff) + (argument > 0xffffffff);
    *to++ = (unsigned char)(first | (24 + power));
    return put_big_endian(to, argument, 1 << power);
}

/* The ids of one prompt take different widths in no order, so a branch on the width would be
 * predicted badly: below 2**32 there is none. Writes eight bytes, of which the first count. */
static inline unsigned char *cbor_id(unsigned char *to, uint64_t id)
{
#if !PY_BIG_ENDIAN
    if (id <= 0xffffffff) {
        static const unsigned char initial[] = {0, 0x18, 0x19, 0, 0x1a};
        unsigned width = (unsigned)((id > 23) + (id > 0xff) + 2 * (id > 0xffff));
        uint64_t swapped = ((id & 0xff) << 24) | ((id & 0xff00) << 8) | ((id >> 8) & 0xff00)
                           | (id >> 24);
        uint64_t first = width ? initial[width] : id;
        uint64_t word = first | (swapped >> (32 - 8 * width)) << 8;
        memcpy(to, &word, sizeof word);
        return to + 1 + width;
    }
#endif
    return cbor_head(to, CBOR_UNSIGNED, id);
}

/* --- pickle ---------------------------------------------------------------------------------- */

enum {
    PICKLE_PROTO = 0x80, PICKLE_VERSION = 5, PICKLE_FRAME = 0x95, PICKLE_STOP = '.',
    PICKLE_NONE = 'N', PICKLE_BININT1 = 'K', PICKLE_BININT2 = 'M', PICKLE_BININT = 'J',
    PICKLE_LONG1 = 0x8a, PICKLE_MEMOIZE = 0x94, PICKLE_BINGET = 'h', PICKLE_MARK = '(',
    PICKLE_TUPLE = 't', PICKLE_TUPLE1 = 0x85, PICKLE_EMPTY_TUPLE = ')',
    PICKLE_SHORT_BINBYTES = 'C', PICKLE_BINBYTES = 'B', PICKLE_SHORT_BINUNICODE = 0x8c,
    PICKLE_BINUNICODE = 'X',
};

/* PROTO and its version, FRAME and its length: what stands before the body. */
enum { PICKLE_PREFIX = 11 };

/* The pickler starts a second frame at this size: such a body is left to it. */
enum { PICKLE_FRAME_LIMIT = 65536 };

static unsigned char *put_little_endian(unsigned char *to, uint64_t value, int width)
{
    for (int i = 0; i < width; i++) {
        *to++ = (unsigned char)(value >> (8 * i));
    }
    return to;
}

static unsigned char *pickle_int(unsigned char *to, int64_t value)
{
    if (value >= 0 && value <= 0xff) {
        *to++ = PICKLE_BININT1;
        return put_little_endian(to, (uint64_t)value, 1);
    }
    if (value >= 0 && value <= 0xffff) {
        *to++ = PICKLE_BININT2;
        return put_little_endian(to, (uint64_t)value, 2);
    }
    if (value >= INT32_MIN && value <= INT32_MAX) {
        *to++ = PICKLE_BININT;
        return put_little_endian(to, (uint64_t)value, 4);
    }
    /* Two's complement in as few bytes as show the sign. */
    int width = 5;
    while (width < 8 && value >> (8 * width - 1) != 0 && value >> (8 * width - 1) != -1) {
        width++;
    }
    *to++ = PICKLE_LONG1;
    *to++ = (unsigned char)width;
    return put_little_endian(to, (uint64_t)value, width);
}

/* As `cbor_id`: no branch below 2**31. */
static inline unsigned char *pickle_id(unsigned char *to, uint64_t id)
{
#if !PY_BIG_ENDIAN
    if (id <= INT32_MAX) {
        static const unsigned char opcode[] = {PICKLE_BININT1, PICKLE_BININT2, PICKLE_BININT};
        static const unsigned char length[] = {2, 3, 5};
        int step = (id > 0xff) + (id > 0xffff);
        uint64_t word = opcode[step] | id << 8;
        memcpy(to, &word, sizeof word);
        return to + length[step];
    }
#endif
    return pickle_int(to, (int64_t)id);
}

/* `opcode` takes a length of one byte, `long_opcode` one of four. */
static unsigned char *pickle_head(unsigned char *to, int opcode, int long_opcode, uint64_t length)
{
    int is_short = length <= 0xff;
    *to++ = (unsigned char)(is_short ? opcode : long_opcode);
    return put_little_endian(to, length, is_short ? 1 : 4);
}

static unsigned char *pickle_tuple_start(unsigned char *to, Py_ssize_t length)
{
    if (length > 3) {
        *to++ = PICKLE_MARK;
    }
    return to;
}

static unsigned char *pickle_tuple_end(unsigned char *to, Py_ssize_t length)
{
    *to++ = (unsigned char)(length > 3 ? PICKLE_TUPLE : PICKLE_TUPLE1 + (int)length - 1);
    *to++ = PICKLE_MEMOIZE;
    return to;
}

#endif
