#include "agent.h"

#include <stdlib.h>

void waiter_add(struct agent *a, const struct request *r, struct command *c, uint64_t until) {
    if (a->waiter_count >= MAX_WAITERS) {
        answer_error(a, r->id, ERR_UNKNOWN, "Too many requests wait.");
        return;
    }
    struct waiter *w = must_alloc(sizeof *w);
    *w = (struct waiter){NULL, r->type, r->id, c, r->from, r->max_bytes, until};
    if (c) c->pins++;
    struct waiter **last = &a->waiters; /* in the order of arrival */
    while (*last) last = &(*last)->next;
    *last = w;
    a->waiter_count++;
    a->waiters_due = true;
}

static bool is_ready(const struct agent *a, const struct waiter *w, uint64_t now) {
    if (w->type == REQ_HOLD) return hold_stands(a) || now >= w->until;
    if (w->command == NULL) return a->stream_count == 0 && (w->type == REQ_QUIET || a->running.count == 0);
    if (w->command->phase == PHASE_OVER) return true;
    return w->type == REQ_READ && (ring_next_seq(&w->command->ring) > w->from || now >= w->until);
}

static void answer(struct agent *a, const struct waiter *w) {
    struct command *c = w->command;
    uint64_t end = c ? ring_next_seq(&c->ring) : 0;
    switch (w->type) {
    case REQ_READ: {
        uint64_t next = answer_events(a, w->request, c, w->from, w->max_bytes);
        follow_read(a, c, next);
        answer_state(a, ANS_STATE, w->request, c, next, c->phase == PHASE_OVER && next >= end);
        break;
    }
    case REQ_RUN:
        answer_collected(a, w->request, c);
        answer_state(a, ANS_STATE, w->request, c, end, false);
        break;
    case REQ_WATCH:
        answer_state(a, ANS_STATE, w->request, c, end, false);
        break;
    case REQ_QUIET:
    case REQ_HOLD:
        answer_ok(a, w->request);
        break;
    default:
        a->stopping = false;
        answer_ok(a, w->request);
    }
}

static void release(struct agent *a, struct waiter *w) {
    if (w->command) command_unpin(a, w->command);
    free(w);
    a->waiter_count--;
}

void waiters_answer(struct agent *a, uint64_t now) {
    if (!a->waiters_due && waiters_next(a) > now) return;
    a->waiters_due = false;
    for (struct waiter **link = &a->waiters; *link;) {
        if (queue_len(&a->out) >= OUT_HIGH_WATER) {
            a->waiters_due = true; /* the rest when the client has read */
            return;
        }
        struct waiter *w = *link;
        if (!is_ready(a, w, now)) {
            link = &w->next;
            continue;
        }
        answer(a, w);
        *link = w->next;
        release(a, w);
    }
}

void waiters_drop(struct agent *a) {
    while (a->waiters) {
        struct waiter *w = a->waiters;
        a->waiters = w->next;
        release(a, w);
    }
}

uint64_t waiters_next(const struct agent *a) {
    uint64_t next = NEVER;
    for (const struct waiter *w = a->waiters; w; w = w->next)
        if (w->until < next) next = w->until;
    return next;
}
