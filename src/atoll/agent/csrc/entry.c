#include "entry.h"

#include <stdlib.h>

#include "clock.h"

static void settle(struct agent *a) {
    a->settled = true;
    a->settle_look_at = NEVER;
    notify_settled(a);
}

bool entry_start(struct agent *a, char **argv) {
    a->settle_look_at = NEVER;
    if (argv[0] == NULL) {
        settle(a);
        return true;
    }
    a->entrypoint = command_launch_entrypoint(a, argv);
    uint64_t now = monotonic_ms();
    a->settle_look_at = now + SETTLE_LOOK_MS;
    a->settle_limit_at = now + SETTLE_LIMIT_MS;
    return a->entrypoint != NULL;
}

/* Asleep at two looks in a row, or alive for long enough: it waits for something and does not die at once. */
void entry_tick(struct agent *a, uint64_t now) {
    if (now < a->settle_look_at) return;
    a->settle_look_at = now + SETTLE_LOOK_MS;
    char state = process_state(a->entrypoint->pid);
    if (state == 0 || state == 'Z') return; /* its end is about to be reported */
    a->asleep_looks = state == 'S' ? a->asleep_looks + 1 : 0;
    if (a->asleep_looks >= 2 || now >= a->settle_limit_at) settle(a);
}

void agent_free(struct agent *a) {
    waiters_drop(a);
    streams_free(a);
    hold_release(a);
    while (a->running.first) {
        struct command *c = a->running.first;
        input_fail(a, c, ERR_UNKNOWN, "");
        command_retire(a, c);
    }
    while (a->exited.first) command_forget(a, a->exited.first);
    if (a->entrypoint) {
        a->entrypoint->next = a->graveyard;
        a->graveyard = a->entrypoint;
    }
    commands_bury(a);
    queue_free(&a->in);
    queue_free(&a->out);
    free(a->environment);
}
