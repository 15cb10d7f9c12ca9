#include "agent.h"

#include <signal.h>
#include <unistd.h>

#include "clock.h"

enum { WORTH_PAGES = 1024 }; /* killing less than 4 MiB frees nothing that matters */

/* What a victim held shows as free only a little after its end; a second kill before that would hit an innocent one. */
static bool still_settling(struct agent *a, uint64_t now) {
    if (a->memory_victim != 0) {
        char state = process_state(a->memory_victim);
        if (state != 0 && state != 'Z' && state != 'X') return true;
        a->memory_victim = 0;
        a->memory_quiet_until = now + MEMORY_SETTLE_MS;
    }
    return now < a->memory_quiet_until;
}

static struct command *owner_of(struct agent *a, struct snapshot *s, pid_t pid) {
    for (struct command *c = a->running.first; c; c = c->next) {
        snapshot_mark(s, c->tree);
        for (size_t i = 0; i < s->count; i++)
            if (s->list[i].pid == pid && s->list[i].member) return c;
    }
    return NULL;
}

void memory_kill(struct agent *a, uint64_t now) {
    if (still_settling(a, now)) return;
    struct snapshot s = {0};
    snapshot_take(&s);
    const struct process *largest = snapshot_largest(&s);
    if (largest && largest->rss_pages >= WORTH_PAGES) {
        pid_t victim = largest->pid;
        struct command *owner = owner_of(a, &s, victim);
        if (owner) owner->lost_memory = true;
        kill(victim, SIGKILL);
        a->memory_victim = victim;
        agent_log("memory ran out: killed process %d", (int)victim);
        notify_killed(a, victim);
    }
    snapshot_free(&s);
}

void memory_stats(struct agent *a, uint32_t request) {
    struct snapshot s = {0};
    snapshot_take(&s);
    uint64_t pages = process_pages(getpid());
    uint32_t alive = 1; /* the agent */
    for (size_t i = 0; i < s.count; i++) {
        pages += s.list[i].rss_pages;
        alive += s.list[i].state != 'Z' && s.list[i].state != 'X';
    }
    snapshot_free(&s);
    answer_stats(a, request, pages * (uint64_t)sysconf(_SC_PAGESIZE), alive);
}
