/* Bytes in and out: a checked cursor over a received frame, a growing queue for what is to be sent, and allocation
 * that ends the program instead of returning NULL. No I/O. */
#ifndef ATOLL_BYTES_H
#define ATOLL_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads big-endian values; the first read beyond the end sets `bad` and every later one returns zero. */
struct cursor {
    const uint8_t *at;
    const uint8_t *end;
    bool bad;
};

struct span {
    const uint8_t *data;
    uint32_t len;
};

uint8_t take_u8(struct cursor *c);
uint16_t take_u16(struct cursor *c);
uint32_t take_u32(struct cursor *c);
uint64_t take_u64(struct cursor *c);
struct span take_raw(struct cursor *c, uint32_t len);
struct span take_bytes(struct cursor *c, uint32_t max); /* u32 length and that many bytes, at most `max` */

/* Bytes wait between `head` and `tail`. */
struct queue {
    uint8_t *data;
    size_t head;
    size_t tail;
    size_t cap;
    size_t keep; /* what an empty one may hold on to; 0: the usual */
};

static inline size_t queue_len(const struct queue *q) { return q->tail - q->head; }

uint8_t *queue_reserve(struct queue *q, size_t len); /* room for `len` bytes at the tail; commit what was written */
static inline void queue_commit(struct queue *q, size_t len) { q->tail += len; }
void queue_consume(struct queue *q, size_t len);
void queue_keep(struct queue *q, size_t keep); /* one that is filled and emptied all the time needs no new memory for it */
void queue_free(struct queue *q);

void put_u8(struct queue *q, uint8_t value);
void put_u16(struct queue *q, uint16_t value);
void put_u32(struct queue *q, uint32_t value);
void put_u64(struct queue *q, uint64_t value);
void put_raw(struct queue *q, const void *data, size_t len);
void put_bytes(struct queue *q, const void *data, uint32_t len); /* u32 length first */

/* A frame is begun, filled with put_*, and ended; the length is set at the end. The mark stays valid when the queue moves. */
size_t frame_begin(struct queue *q, uint8_t type, uint32_t id);
void frame_end(struct queue *q, size_t mark);
void frame_cancel(struct queue *q, size_t mark); /* takes back what was begun */

uint32_t load_u32(const uint8_t *at);

void *must_alloc(size_t len);           /* zeroed */
void *must_resize(void *old, size_t len);

#endif
