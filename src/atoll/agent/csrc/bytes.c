#include "bytes.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "wire.h"

enum { QUEUE_KEEP = 64 * 1024 }; /* an empty queue gives back memory beyond this */

static const uint8_t *take(struct cursor *c, size_t len) {
    if (c->bad || (size_t)(c->end - c->at) < len) {
        c->bad = true;
        return NULL;
    }
    const uint8_t *at = c->at;
    c->at += len;
    return at;
}

uint32_t load_u32(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

uint8_t take_u8(struct cursor *c) {
    const uint8_t *at = take(c, 1);
    return at ? at[0] : 0;
}

uint16_t take_u16(struct cursor *c) {
    const uint8_t *at = take(c, 2);
    return at ? (uint16_t)((unsigned)at[0] << 8 | at[1]) : 0;
}

uint32_t take_u32(struct cursor *c) {
    const uint8_t *at = take(c, 4);
    return at ? load_u32(at) : 0;
}

uint64_t take_u64(struct cursor *c) {
    const uint8_t *at = take(c, 8);
    return at ? (uint64_t)load_u32(at) << 32 | load_u32(at + 4) : 0;
}

struct span take_raw(struct cursor *c, uint32_t len) {
    const uint8_t *at = take(c, len);
    return at ? (struct span){at, len} : (struct span){NULL, 0};
}

struct span take_bytes(struct cursor *c, uint32_t max) {
    uint32_t len = take_u32(c);
    if (len > max) c->bad = true;
    return take_raw(c, len);
}

uint8_t *queue_reserve(struct queue *q, size_t len) {
    if (q->cap - q->tail >= len) return q->data + q->tail;
    size_t used = queue_len(q);
    if (q->head > 0 && q->cap - used >= len && q->head >= used) {
        memcpy(q->data, q->data + q->head, used);
    } else {
        size_t cap = q->cap ? q->cap : 4096;
        while (cap - used < len) cap *= 2;
        uint8_t *grown = must_resize(NULL, cap);
        if (used) memcpy(grown, q->data + q->head, used);
        free(q->data);
        q->data = grown;
        q->cap = cap;
    }
    q->head = 0;
    q->tail = used;
    return q->data + used;
}

void queue_consume(struct queue *q, size_t len) {
    q->head += len;
    if (q->head < q->tail) return;
    q->head = q->tail = 0;
    queue_keep(q, q->keep);
}

void queue_keep(struct queue *q, size_t keep) {
    q->keep = keep;
    if (queue_len(q) == 0 && q->cap > (keep ? keep : QUEUE_KEEP)) queue_free(q);
}

void queue_free(struct queue *q) {
    free(q->data);
    *q = (struct queue){.keep = q->keep};
}

static void store_u32(uint8_t *at, uint32_t value) {
    at[0] = (uint8_t)(value >> 24);
    at[1] = (uint8_t)(value >> 16);
    at[2] = (uint8_t)(value >> 8);
    at[3] = (uint8_t)value;
}

void put_u8(struct queue *q, uint8_t value) {
    *queue_reserve(q, 1) = value;
    queue_commit(q, 1);
}

void put_u16(struct queue *q, uint16_t value) {
    put_u8(q, (uint8_t)(value >> 8));
    put_u8(q, (uint8_t)value);
}

void put_u32(struct queue *q, uint32_t value) {
    store_u32(queue_reserve(q, 4), value);
    queue_commit(q, 4);
}

void put_u64(struct queue *q, uint64_t value) {
    put_u32(q, (uint32_t)(value >> 32));
    put_u32(q, (uint32_t)value);
}

void put_raw(struct queue *q, const void *data, size_t len) {
    if (len == 0) return;
    memcpy(queue_reserve(q, len), data, len);
    queue_commit(q, len);
}

void put_bytes(struct queue *q, const void *data, uint32_t len) {
    put_u32(q, len);
    put_raw(q, data, len);
}

size_t frame_begin(struct queue *q, uint8_t type, uint32_t id) {
    queue_reserve(q, FRAME_HEAD); /* so that head does not move between the mark and the first byte */
    size_t mark = queue_len(q);
    put_u32(q, 0);
    put_u8(q, type);
    put_u32(q, id);
    return mark;
}

void frame_end(struct queue *q, size_t mark) {
    uint8_t *at = q->data + q->head + mark;
    store_u32(at, (uint32_t)(queue_len(q) - mark - 4));
}

void frame_cancel(struct queue *q, size_t mark) { q->tail = q->head + mark; }

void *must_resize(void *old, size_t len) {
    void *block = realloc(old, len ? len : 1);
    if (block == NULL) {
        static const char text[] = "atoll-agent: out of memory\n";
        ssize_t ignored = write(2, text, sizeof text - 1);
        (void)ignored;
        _exit(70);
    }
    return block;
}

void *must_alloc(size_t len) { return memset(must_resize(NULL, len), 0, len); }
