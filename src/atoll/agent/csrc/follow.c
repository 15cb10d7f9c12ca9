/* Keeps a command from outrunning whoever follows its output. A reader that keeps up loses nothing and no processor time goes
 * into output that nobody gets; one that does not keep up costs the command a bounded share of its time. */
#include "agent.h"

#include <sys/epoll.h>

#include "clock.h"

static uint64_t backlog(const struct command *c) { return c->ring.end - c->followed; }

static void listen_to(struct agent *a, struct source *s, bool wanted) {
    if (s->fd < 0) return;
    /* Not an empty set of events: epoll would still report a hang-up, over and over. */
    if (wanted)
        source_add(a, s, EPOLLIN);
    else
        epoll_ctl(a->epoll, EPOLL_CTL_DEL, s->fd, NULL);
}

void follow_release(struct agent *a, struct command *c) {
    if (c->output_held_until == NEVER) return;
    c->output_held_until = NEVER;
    listen_to(a, &c->out, true);
    listen_to(a, &c->err, true);
}

/* Whether the command has to wait with its output now. */
bool follow_holds(struct agent *a, struct command *c) {
    if (c->output_held_until != NEVER) return true;
    if (c->run || c->terminal || c->phase != PHASE_RUNNING || backlog(c) < FOLLOW_BACKLOG_BYTES) return false;
    uint64_t now = monotonic_ms();
    if (now < c->free_until || now >= c->followed_at + FOLLOW_MS) return false; /* nobody reads, or not fast enough */
    c->output_held_until = now + FOLLOW_MS;
    listen_to(a, &c->out, false);
    listen_to(a, &c->err, false);
    return true;
}

/* A reader has got everything before an event. Of several the first counts. */
void follow_read(struct agent *a, struct command *c, uint64_t next) {
    uint64_t offset = ring_offset(&c->ring, next);
    if (offset < c->followed) return;
    c->followed = offset;
    c->followed_at = monotonic_ms();
    if (backlog(c) < FOLLOW_BACKLOG_BYTES) follow_release(a, c);
}

void follow_tick(struct agent *a, struct command *c, uint64_t now) {
    if (now < c->output_held_until) return;
    c->free_until = now + FOLLOW_FREE_MS;
    follow_release(a, c);
}
