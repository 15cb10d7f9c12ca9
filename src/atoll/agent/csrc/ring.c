#include "ring.h"

#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

enum { CAP_MIN = 16 * 1024, CAP_MAX = RING_BYTES + FILL_BYTES };

static struct ring_event *event(const struct ring *r, size_t index) {
    return &r->events[(r->events_head + index) % r->events_cap];
}

/* Length by the difference of low halves: no event is longer than 4 GiB. */
static uint32_t event_len(const struct ring *r, size_t index) {
    uint32_t next = index + 1 < r->events_count ? event(r, index + 1)->start : (uint32_t)r->end;
    return next - event(r, index)->start;
}

static void remember_dropped(struct ring *r, uint64_t seq) {
    if (r->dropped_count == r->dropped_cap && r->dropped_cap < RING_DROPPED_KNOWN) {
        /* Below the maximum the log still begins at seq 0, so growing it keeps every index where it is. */
        r->dropped_cap = r->dropped_cap ? r->dropped_cap * 2 : 64;
        r->dropped = must_resize(r->dropped, r->dropped_cap * sizeof *r->dropped);
    }
    r->dropped[seq % r->dropped_cap] = r->start;
    if (r->dropped_count < r->dropped_cap) r->dropped_count++;
}

static void drop_first(struct ring *r) {
    uint32_t len = event_len(r, 0);
    remember_dropped(r, r->first_seq);
    r->start += len;
    r->first_seq++;
    r->events_head = (r->events_head + 1) % r->events_cap;
    r->events_count--;
}

static void push_event(struct ring *r, uint8_t kind) {
    if (r->events_count == RING_EVENTS) drop_first(r);
    if (r->events_count == r->events_cap) {
        size_t cap = r->events_cap ? r->events_cap * 2 : 16;
        struct ring_event *grown = must_resize(NULL, cap * sizeof *grown);
        for (size_t i = 0; i < r->events_count; i++) grown[i] = *event(r, i);
        free(r->events);
        r->events = grown;
        r->events_cap = cap;
        r->events_head = 0;
    }
    r->events_count++;
    *event(r, r->events_count - 1) = (struct ring_event){(uint32_t)r->end, kind};
}

static bool grow(struct ring *r, size_t cap) {
    uint8_t *grown = malloc(cap);
    if (grown == NULL) return false;
    for (uint64_t at = r->start; at < r->end;) {
        size_t from = at % r->cap, to = at % cap, len = (size_t)(r->end - at);
        if (len > r->cap - from) len = r->cap - from;
        if (len > cap - to) len = cap - to;
        memcpy(grown + to, r->data + from, len);
        at += len;
    }
    free(r->data);
    r->data = grown;
    r->cap = cap;
    return true;
}

/* Free room of at least `want` bytes; under memory pressure by dropping events early instead of growing. */
static void make_room(struct ring *r, size_t want) {
    size_t used = (size_t)(r->end - r->start);
    if (r->cap - used >= want) return;
    size_t cap = r->cap ? r->cap : CAP_MIN;
    while (cap - used < want && cap < CAP_MAX) cap *= 2;
    if (cap > CAP_MAX) cap = CAP_MAX;
    if (grow(r, cap)) return;
    if (r->cap == 0) must_resize(NULL, SIZE_MAX / 2); /* ends the program: not even the smallest ring fits */
    while (r->cap - (size_t)(r->end - r->start) < want && r->events_count > 0) {
        drop_first(r);
        r->open = r->open && r->events_count > 0;
    }
}

/* Splits bytes that are in the buffer already, behind `end`, into events. */
static void account(struct ring *r, uint8_t kind, size_t len) {
    while (len > 0) {
        size_t last = r->events_count - 1;
        size_t room = 0;
        if (r->open && r->events_count > 0 && event(r, last)->kind == kind) room = CHUNK_BYTES - event_len(r, last);
        if (room == 0) {
            push_event(r, kind);
            r->open = true;
            room = CHUNK_BYTES;
        }
        size_t step = len < room ? len : room;
        r->end += step;
        len -= step;
    }
    while (r->end - r->start > RING_BYTES) drop_first(r);
}

static int free_parts(const struct ring *r, size_t want, struct iovec part[2]) {
    size_t at = r->end % r->cap;
    size_t first = r->cap - at < want ? r->cap - at : want;
    part[0] = (struct iovec){r->data + at, first};
    part[1] = (struct iovec){r->data, want - first};
    return want > first ? 2 : 1;
}

ssize_t ring_fill(struct ring *r, uint8_t kind, int fd) {
    size_t want = r->cap < FILL_BYTES ? CAP_MIN : FILL_BYTES; /* quiet commands keep a small ring */
    make_room(r, want);
    struct iovec part[2];
    int parts = free_parts(r, want, part);
    ssize_t got = readv(fd, part, parts);
    if (got > 0) account(r, kind, (size_t)got);
    if (got == (ssize_t)want && r->cap < FILL_BYTES) make_room(r, FILL_BYTES);
    return got;
}

void ring_mark(struct ring *r, uint8_t kind) {
    push_event(r, kind);
    r->open = false;
}

uint64_t ring_offset(const struct ring *r, uint64_t seq) {
    if (seq >= ring_next_seq(r)) return r->end;
    if (seq < r->first_seq) return r->start;
    /* The whole offset: the event lies less than 4 GiB before the end. */
    return r->end - (uint32_t)((uint32_t)r->end - event(r, (size_t)(seq - r->first_seq))->start);
}

struct ring_view ring_event_at(const struct ring *r, uint64_t seq) {
    size_t index = (size_t)(seq - r->first_seq);
    struct ring_view view = {.kind = event(r, index)->kind};
    uint32_t len = event_len(r, index);
    if (len == 0) return view;
    size_t at = ring_offset(r, seq) % r->cap;
    uint32_t first = r->cap - at < len ? (uint32_t)(r->cap - at) : len;
    view.part[0] = (struct span){r->data + at, first};
    view.part[1] = (struct span){r->data, len - first};
    return view;
}

void ring_seal(struct ring *r) { r->open = false; }

uint64_t ring_dropped_bytes(const struct ring *r, uint64_t from) {
    if (from >= r->first_seq) return 0;
    uint64_t oldest = r->first_seq - r->dropped_count;
    if (from >= oldest) return r->start - r->dropped[from % r->dropped_cap];
    /* Older than the log: the sizes before it are taken as equal. Exact for 0. */
    double share = (double)from / (double)oldest;
    return r->start - (uint64_t)(share * (double)r->dropped[oldest % r->dropped_cap]);
}

size_t ring_footprint(const struct ring *r) {
    return r->cap + r->events_cap * sizeof *r->events + r->dropped_cap * sizeof *r->dropped;
}

void ring_shrink(struct ring *r) {
    size_t used = (size_t)(r->end - r->start);
    if (used == 0) {
        free(r->data);
        r->data = NULL;
        r->cap = 0;
    } else if (used < r->cap) {
        grow(r, used);
    }
}

void ring_free(struct ring *r) {
    free(r->data);
    free(r->events);
    free(r->dropped);
    *r = (struct ring){0};
}
