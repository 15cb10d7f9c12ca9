/* Everything in the sandbox but the agent stands still, so that a snapshot is of one moment. It goes on when the client says so,
 * when the client is another one, or when the time is over: nobody may be forgotten standing. */
#include "agent.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"

static bool is_held(const struct agent *a, pid_t pid) {
    for (size_t i = 0; i < a->held_count; i++)
        if (a->held[i] == pid) return true;
    return false;
}

static void remember(struct agent *a, pid_t pid) {
    if (is_held(a, pid)) return;
    if (a->held_count == a->held_cap) {
        a->held_cap = a->held_cap ? a->held_cap * 2 : 32;
        a->held = must_resize(a->held, a->held_cap * sizeof *a->held);
    }
    a->held[a->held_count++] = pid;
}

/* Stops what runs; returns whether there was any. What had been stopped before is not ours to continue. */
static bool stop_all(struct agent *a) {
    struct snapshot s = {0};
    bool any = false;
    snapshot_take(&s);
    for (size_t i = 0; i < s.count; i++) {
        if (strchr("ZXTt", s.list[i].state)) continue;
        any = true;
        remember(a, s.list[i].pid);
        kill(s.list[i].pid, SIGSTOP);
    }
    snapshot_free(&s);
    return any;
}

void hold_begin(struct agent *a, uint32_t max_ms) {
    uint64_t now = monotonic_ms();
    streams_stop(a);
    a->hold_until = now + max_ms;
    a->hold_look_at = now;
    a->still_looks = 0;
}

void hold_release(struct agent *a) {
    a->hold_until = a->hold_look_at = NEVER;
    /* Children first: a shell that goes on finds its jobs running and does not call them stopped. */
    while (a->held_count > 0) kill(a->held[--a->held_count], SIGCONT);
    free(a->held);
    a->held = NULL;
    a->held_cap = 0;
    a->waiters_due = true;
}

bool hold_stands(const struct agent *a) { return a->hold_until == NEVER || a->still_looks >= HOLD_STILL_LOOKS; }

void hold_tick(struct agent *a, uint64_t now) {
    if (now >= a->hold_until) {
        hold_release(a);
        return;
    }
    if (now < a->hold_look_at) return;
    a->hold_look_at = now + HOLD_LOOK_MS;
    if (a->stream_count > 0) return; /* their workers clean up first */
    a->still_looks = stop_all(a) ? 0 : a->still_looks + 1;
    if (!hold_stands(a)) return;
    a->waiters_due = true;
    a->hold_look_at = now + HOLD_KEEP_MS; /* for what is started meanwhile */
}

uint64_t hold_next(const struct agent *a) { return a->hold_look_at < a->hold_until ? a->hold_look_at : a->hold_until; }
