#include "agent.h"

#include <string.h>

#include "clock.h"

enum { OUTPUT_HEAD = FRAME_HEAD + 13 };

static const char version[] = ATOLL_VERSION;

void answer_ok(struct agent *a, uint32_t request) { frame_end(&a->out, frame_begin(&a->out, ANS_OK, request)); }

void answer_error(struct agent *a, uint32_t request, enum error_code code, const char *sentence) {
    size_t mark = frame_begin(&a->out, ANS_ERROR, request);
    put_u8(&a->out, (uint8_t)code);
    put_bytes(&a->out, sentence, (uint32_t)strlen(sentence));
    frame_end(&a->out, mark);
}

void answer_hello(struct agent *a, uint32_t request, uint32_t epoch) {
    size_t mark = frame_begin(&a->out, ANS_HELLO, request);
    put_u32(&a->out, epoch);
    put_u16(&a->out, PROTOCOL_VERSION);
    put_bytes(&a->out, version, sizeof version - 1);
    put_u64(&a->out, monotonic_ms() - a->began_at);
    put_u8(&a->out, a->settled);
    frame_end(&a->out, mark);
}

void answer_started(struct agent *a, uint32_t request, const struct command *c, bool existing) {
    size_t mark = frame_begin(&a->out, ANS_STARTED, request);
    put_u8(&a->out, existing);
    put_u32(&a->out, (uint32_t)c->pid);
    put_u64(&a->out, c->started_ms);
    frame_end(&a->out, mark);
}

static void put_state(struct queue *q, const struct command *c) {
    bool over = c->phase == PHASE_OVER;
    put_raw(q, c->id, EXECUTION_ID_BYTES);
    put_u8(q, over);
    put_u32(q, over ? (uint32_t)c->exit_code : 0);
    put_u8(q, over ? (uint8_t)c->reason : 0);
    put_u64(q, c->started_ms);
    put_u64(q, over ? c->exited_ms : 0);
    put_u64(q, c->total[0]);
    put_u64(q, c->total[1]);
    put_u8(q, c->ring.first_seq > 0);
}

static uint8_t cut_flags(const struct command *c) {
    return (uint8_t)(c->capture[0].cut | c->capture[1].cut << 1);
}

void answer_state(struct agent *a, uint8_t type, uint32_t request, const struct command *c, uint64_t next, bool complete) {
    size_t mark = frame_begin(&a->out, type, request);
    put_state(&a->out, c);
    put_u64(&a->out, next);
    put_u8(&a->out, complete);
    put_u8(&a->out, cut_flags(c));
    frame_end(&a->out, mark);
}

void answer_item(struct agent *a, uint32_t request, const struct command *c) {
    size_t mark = frame_begin(&a->out, ANS_ITEM, request);
    put_state(&a->out, c);
    put_u8(&a->out, cut_flags(c));
    put_u32(&a->out, (uint32_t)c->pid);
    frame_end(&a->out, mark);
}

void answer_collected(struct agent *a, uint32_t request, const struct command *c) {
    for (int stream = 0; stream < 2; stream++) {
        const struct capture *kept = &c->capture[stream];
        for (size_t at = 0; at < kept->len; at += DATA_PER_FRAME) {
            size_t len = kept->len - at < DATA_PER_FRAME ? kept->len - at : DATA_PER_FRAME;
            size_t mark = frame_begin(&a->out, ANS_COLLECTED, request);
            put_u8(&a->out, (uint8_t)(stream + 1));
            put_bytes(&a->out, kept->data + at, (uint32_t)len);
            frame_end(&a->out, mark);
        }
    }
}

static void put_event(struct queue *q, uint32_t request, const struct command *c, uint64_t seq, struct ring_view view) {
    size_t mark = frame_begin(q, ANS_OUTPUT, request);
    put_u64(q, seq);
    put_u8(q, view.kind);
    switch (view.kind) {
    case EVENT_INIT:
        put_u32(q, (uint32_t)c->pid);
        break;
    case EVENT_EXIT:
        put_u32(q, (uint32_t)c->exit_code);
        put_u8(q, (uint8_t)c->reason);
        break;
    default:
        put_u32(q, view.part[0].len + view.part[1].len);
        put_raw(q, view.part[0].data, view.part[0].len);
        put_raw(q, view.part[1].data, view.part[1].len);
    }
    frame_end(q, mark);
}

static void put_truncated(struct queue *q, uint32_t request, const struct ring *ring, uint64_t from) {
    size_t mark = frame_begin(q, ANS_OUTPUT, request);
    put_u64(q, ring->first_seq - 1);
    put_u8(q, EVENT_TRUNCATED);
    put_u64(q, ring_dropped_bytes(ring, from));
    put_u64(q, ring->first_seq - from);
    frame_end(q, mark);
}

uint64_t answer_events(struct agent *a, uint32_t request, struct command *c, uint64_t from, uint32_t max_bytes) {
    struct ring *ring = &c->ring;
    uint64_t end = ring_next_seq(ring), next = from;
    if (next < ring->first_seq) {
        put_truncated(&a->out, request, ring, from);
        next = ring->first_seq;
    }
    bool any = false; /* one event always goes, however small the limit, so that every READ gets on */
    for (uint64_t left = max_bytes; next < end; next++) {
        struct ring_view view = ring_event_at(ring, next);
        uint32_t len = view.part[0].len + view.part[1].len;
        uint64_t cost = len + (uint64_t)OUTPUT_HEAD; /* a million events of one byte are not one megabyte */
        if (cost > left && any) break;
        any = true;
        left = cost < left ? left - cost : 0;
        put_event(&a->out, request, c, next, view);
    }
    if (next >= end) ring_seal(ring);
    return next;
}

void answer_stats(struct agent *a, uint32_t request, uint64_t memory, uint32_t processes) {
    size_t mark = frame_begin(&a->out, ANS_STATS, request);
    put_u64(&a->out, monotonic_ms() - a->began_at);
    put_u64(&a->out, memory);
    put_u32(&a->out, processes);
    put_u32(&a->out, (uint32_t)a->running.count);
    frame_end(&a->out, mark);
}

void notify_settled(struct agent *a) { frame_end(&a->out, frame_begin(&a->out, NOTE_SETTLED, 0)); }

void notify_killed(struct agent *a, pid_t pid) {
    size_t mark = frame_begin(&a->out, NOTE_KILLED, 0);
    put_u32(&a->out, (uint32_t)pid);
    frame_end(&a->out, mark);
}
