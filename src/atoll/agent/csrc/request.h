/* A request as decoded from one frame. Pure: no I/O, no state; this is what the fuzzer drives. */
#ifndef ATOLL_REQUEST_H
#define ATOLL_REQUEST_H

#include "bytes.h"
#include "wire.h"

struct request {
    uint8_t type;
    uint32_t id;
    uint8_t execution[EXECUTION_ID_BYTES];
    /* START, RUN */
    uint32_t flags;
    uint16_t rows, cols;
    uint64_t timeout_ms;
    char **argv; /* NULL-terminated, as is env; both live in `arena` */
    char **env;
    const char *cwd; /* NULL: the default */
    uint32_t capture;
    /* READ */
    uint64_t from;
    uint32_t max_bytes, wait_ms;
    /* STDIN, SIGNAL, HELLO, STOP */
    uint8_t eof, signal, cancel;
    struct span data; /* points into the frame */
    uint32_t epoch, grace_ms;
    /* HOLD */
    uint32_t max_ms;
    /* OPEN, CREDIT; FILES has its arguments in argv, DATA its bytes in data */
    uint8_t kind;
    uint16_t port;
    uint32_t credit;
    void *arena;
};

/* Decodes the frame after its length field. Returns NULL, or a sentence on what is wrong with it; type and id are set as
 * far as they are there. request_free is due in both cases. */
const char *request_decode(struct request *request, const uint8_t *frame, size_t len);
void request_free(struct request *request);

#endif
