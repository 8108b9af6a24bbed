/* SHA-256 through libcrypto and XXH3-128 through libxxhash, each where its header was found.
 *
 * setup.py defines PREFIXHASH_OPENSSL and PREFIXHASH_XXHASH, or the reasons why not.
 */
#ifndef PREFIXHASH_DIGEST_H
#define PREFIXHASH_DIGEST_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { SHA256_BLOCK = 64, MAX_DIGEST = 32 };

/* Room that `sha256_chained` needs behind a message for its padding. */
enum { PADDING = SHA256_BLOCK + 9 };

#ifdef PREFIXHASH_OPENSSL
/* The low-level functions: on messages of two blocks the EVP layer costs half as much again as the
 * hashing itself. They are deprecated for new designs, not removed, in OpenSSL 3. */
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/crypto.h>
#include <openssl/sha.h>

enum { HAS_SHA256 = 1 };

typedef struct {
    SHA256_CTX context;
    SHA256_CTX start;
} Sha256;

static void sha256_begin(Sha256 *state)
{
    SHA256_Init(&state->start);
    state->context = state->start;
}

/* Pads the message itself, so that one call hashes whole blocks from where they lie; only the
 * chaining value of the context needs to be set back. Writes behind `message`, see PADDING. */
static void sha256_chained(Sha256 *state, unsigned char *message, size_t length, unsigned char *out)
{
    size_t padded = (length + 9 + SHA256_BLOCK - 1) / SHA256_BLOCK * SHA256_BLOCK;
    uint64_t bits = (uint64_t)length * 8;
    message[length] = 0x80;
    memset(message + length + 1, 0, padded - length - 9);
    for (size_t i = 0; i < 8; i++) {
        message[padded - 1 - i] = (unsigned char)(bits >> (8 * i));
    }
    memcpy(state->context.h, state->start.h, sizeof state->start.h);
    SHA256_Update(&state->context, message, padded);
    for (size_t i = 0; i < 8; i++) {
        uint32_t word = (uint32_t)state->context.h[i];
        *out++ = (unsigned char)(word >> 24);
        *out++ = (unsigned char)(word >> 16);
        *out++ = (unsigned char)(word >> 8);
        *out++ = (unsigned char)word;
    }
}

#define SHA256_SOURCE OPENSSL_VERSION_TEXT
#else
enum { HAS_SHA256 = 0 };

typedef struct {
    char unused;
} Sha256;

static void sha256_begin(Sha256 *state)
{
    (void)state;
}

static void sha256_chained(Sha256 *state, unsigned char *message, size_t length, unsigned char *out)
{
    (void)state, (void)message, (void)length, (void)out;
}

#define SHA256_SOURCE "hashlib (" PREFIXHASH_NO_OPENSSL ")"
#endif

#ifdef PREFIXHASH_XXHASH
#define XXH_INLINE_ALL
#include <xxhash.h>

enum { HAS_XXH3 = 1 };

static void xxh3_canonical(const unsigned char *message, size_t length, unsigned char *out)
{
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(message, length));
    memcpy(out, canonical.digest, sizeof canonical.digest);
}

#define DIGITS(number) #number
#define DIGITS_OF(macro) DIGITS(macro)
#define XXH3_SOURCE                                                                                \
    "libxxhash " DIGITS_OF(XXH_VERSION_MAJOR) "." DIGITS_OF(XXH_VERSION_MINOR) "." DIGITS_OF(      \
        XXH_VERSION_RELEASE)
#else
enum { HAS_XXH3 = 0 };

static void xxh3_canonical(const unsigned char *message, size_t length, unsigned char *out)
{
    (void)message, (void)length, (void)out;
}

#define XXH3_SOURCE "xxhash package (" PREFIXHASH_NO_XXHASH ")"
#endif

#endif
