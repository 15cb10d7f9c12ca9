/* The newest output of one command, as events with sequence numbers. Pure but for ring_fill, which reads a descriptor. */
#ifndef ATOLL_RING_H
#define ATOLL_RING_H

#include <sys/types.h>

#include "bytes.h"

enum {
    RING_BYTES = 4 * 1024 * 1024,
    RING_EVENTS = 512 * 1024,        /* also kept at most; bounds what one-byte events cost */
    RING_DROPPED_KNOWN = 64 * 1024,  /* dropped events whose size is still known exactly */
    CHUNK_BYTES = 32 * 1024,
    FILL_BYTES = 256 * 1024          /* most that one ring_fill reads, so that one loud command cannot stall the others */
};

struct ring_event {
    uint32_t start; /* low half of the offset of its first byte since the command began */
    uint8_t kind;
};

struct ring {
    uint8_t *data;
    size_t cap;
    uint64_t start, end; /* offsets of the bytes kept */
    struct ring_event *events;
    size_t events_cap, events_head, events_count;
    uint64_t first_seq;
    uint64_t *dropped; /* start offsets of the newest dropped events, by seq modulo its size */
    size_t dropped_cap, dropped_count;
    bool open; /* the last event is output nobody has read and may grow */
};

static inline uint64_t ring_next_seq(const struct ring *r) { return r->first_seq + r->events_count; }

void ring_mark(struct ring *r, uint8_t kind); /* an event without bytes: init, exit */
ssize_t ring_fill(struct ring *r, uint8_t kind, int fd); /* as read(2) */

/* One event as it is kept; the bytes may lie in two parts. */
struct ring_view {
    uint8_t kind;
    struct span part[2];
};
struct ring_view ring_event_at(const struct ring *r, uint64_t seq); /* first_seq <= seq < next */
uint64_t ring_offset(const struct ring *r, uint64_t seq);          /* of its first byte, since the command began */
void ring_seal(struct ring *r);                                     /* the last event has been read */
uint64_t ring_dropped_bytes(const struct ring *r, uint64_t from);   /* in dropped events at or after `from` */
size_t ring_footprint(const struct ring *r);
void ring_shrink(struct ring *r); /* no more will come: gives back what is not used */
void ring_free(struct ring *r);

#endif
