package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Stats counts what really happened.
type Stats struct {
	Seeds          int            `json:"seeds"`
	Operations     int            `json:"operations"`
	Commits        int            `json:"commits"`
	Rows           int            `json:"rows_changed"`
	Checks         int            `json:"checks"`
	Faults         map[string]int `json:"faults"`
	Jobs           int            `json:"jobs"`
	Tasks          int            `json:"tasks"`
	Grants         int            `json:"grants"`
	Losses         int            `json:"losses"`
	Released       int            `json:"released"`
	TakenBack      int            `json:"leases_of_lost_answers_taken_back"`
	Successes      int            `json:"successes"`
	Retries        int            `json:"retries"`
	Snoozes        int            `json:"snoozes"`
	DeadLetters    int            `json:"dead_letters"`
	Stale          int            `json:"stale_commits_rejected"`
	LateRenewals   int            `json:"late_renewals_refused"`
	Repeats        int            `json:"repeats_answered_alike"`
	KeyRepeats     int            `json:"idempotent_repeats"`
	KeyConflicts   int            `json:"idempotency_conflicts"`
	Unknown        int            `json:"unknown_outcomes"`
	Cut            int            `json:"attempts_cut_off_by_timeout"`
	Silent         int            `json:"attempts_ended_for_a_missed_heartbeat"`
	Closed         int            `json:"tasks_out_of_time"`
	Beats          int            `json:"heartbeats"`
	Locks          int            `json:"locks_granted"`
	LocksAnswered  int            `json:"locks_answered"`
	Rings          int            `json:"rings_refused"`
	Checkpoints    int            `json:"checkpoints_handed_on"`
	Staged         int            `json:"artifacts_staged"`
	Published      int            `json:"artifacts_published"`
	Dropped        int            `json:"artifacts_that_did_not_count"`
	Explained      int            `json:"explained_tasks"`
	Purged         int            `json:"jobs_deleted"`
	Undone         int            `json:"tasks_undone"`
	Cancels        int            `json:"cancels"`
	CancelsBetween int            `json:"cancels_between_attempts"`
	Forced         int            `json:"forced_ends"`
	Pauses         int            `json:"pauses"`
	Resumes        int            `json:"resumes"`
	Replays        int            `json:"replays"`
	Expired        int            `json:"jobs_expired"`
	Skipped        int            `json:"skipped"`
	Expansions     int            `json:"expansions"`
	Joins          int            `json:"joins_released"`
	InLine         int            `json:"commits_with_elements_in_line"`
	Reopened       int            `json:"jobs_reopened"`
	LostWakeUps    int            `json:"wake_ups_lost"`
	Nested         int            `json:"operations_inside_others"`
	VirtualHours   float64        `json:"virtual_hours"`
}

func newStats() Stats { return Stats{Faults: map[string]int{}} }

// counters are those that must not stay at zero in a run of some size.
func (s *Stats) counters() map[string]int {
	m := map[string]int{"operations": s.Operations, "commits": s.Commits, "checks": s.Checks, "jobs": s.Jobs, "tasks": s.Tasks, "grants": s.Grants, "losses": s.Losses, "released": s.Released,
		"leases of lost answers taken back": s.TakenBack, "successes": s.Successes, "retries": s.Retries, "snoozes": s.Snoozes, "dead letters": s.DeadLetters,
		"stale commits rejected": s.Stale, "late renewals refused": s.LateRenewals, "repeats answered alike": s.Repeats, "idempotent repeats": s.KeyRepeats,
		"idempotency conflicts": s.KeyConflicts, "unknown outcomes": s.Unknown, "attempts cut off": s.Cut, "cancels": s.Cancels, "cancels between attempts": s.CancelsBetween, "missed heartbeats": s.Silent, "tasks out of time": s.Closed, "heartbeats": s.Beats, "checkpoints handed on": s.Checkpoints, "artifacts staged": s.Staged, "artifacts published": s.Published, "artifacts that did not count": s.Dropped, "jobs deleted": s.Purged, "tasks explained": s.Explained, "tasks undone": s.Undone, "forced ends": s.Forced, "pauses": s.Pauses, "resumes": s.Resumes,
		"replays": s.Replays, "jobs expired": s.Expired, "skipped": s.Skipped, "expansions": s.Expansions, "joins released": s.Joins, "commits with elements in line": s.InLine, "jobs reopened": s.Reopened,
		"wake-ups lost": s.LostWakeUps, "operations inside others": s.Nested}
	for k := range kinds {
		m["fault "+k.String()] = s.Faults[k.String()]
	}
	return m
}

// Add adds the counts of another run.
func (s *Stats) Add(o *Stats) {
	s.Seeds += o.Seeds
	s.VirtualHours += o.VirtualHours
	for k, n := range o.Faults {
		s.Faults[k] += n
	}
	for _, p := range []struct{ to, from *int }{{&s.Operations, &o.Operations}, {&s.Commits, &o.Commits}, {&s.Rows, &o.Rows}, {&s.Checks, &o.Checks}, {&s.Jobs, &o.Jobs}, {&s.Tasks, &o.Tasks},
		{&s.Grants, &o.Grants}, {&s.Losses, &o.Losses}, {&s.Released, &o.Released}, {&s.TakenBack, &o.TakenBack}, {&s.Successes, &o.Successes}, {&s.Retries, &o.Retries},
		{&s.Snoozes, &o.Snoozes}, {&s.DeadLetters, &o.DeadLetters}, {&s.Stale, &o.Stale}, {&s.LateRenewals, &o.LateRenewals}, {&s.Repeats, &o.Repeats}, {&s.KeyRepeats, &o.KeyRepeats},
		{&s.KeyConflicts, &o.KeyConflicts}, {&s.Unknown, &o.Unknown}, {&s.Cut, &o.Cut}, {&s.Cancels, &o.Cancels}, {&s.CancelsBetween, &o.CancelsBetween}, {&s.Forced, &o.Forced}, {&s.Pauses, &o.Pauses}, {&s.Resumes, &o.Resumes},
		{&s.Replays, &o.Replays}, {&s.Expired, &o.Expired}, {&s.Skipped, &o.Skipped}, {&s.Expansions, &o.Expansions}, {&s.Joins, &o.Joins}, {&s.InLine, &o.InLine}, {&s.Reopened, &o.Reopened},
		{&s.Silent, &o.Silent}, {&s.Closed, &o.Closed}, {&s.Beats, &o.Beats}, {&s.Checkpoints, &o.Checkpoints}, {&s.Staged, &o.Staged}, {&s.Published, &o.Published}, {&s.Dropped, &o.Dropped}, {&s.Explained, &o.Explained}, {&s.Purged, &o.Purged}, {&s.Undone, &o.Undone},
		{&s.LostWakeUps, &o.LostWakeUps}, {&s.Nested, &o.Nested}} {
		*p.to += *p.from
	}
}

// Zeros names what never happened.
func (s *Stats) Zeros() (list []string) {
	m := s.counters()
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if m[k] == 0 {
			list = append(list, k)
		}
	}
	return list
}

// String tells all counts in a few lines.
func (s *Stats) String() string {
	var b strings.Builder
	m := s.counters()
	fmt.Fprintf(&b, "%d seeds, %.1f virtual hours\n", s.Seeds, s.VirtualHours)
	n := 0
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if n > 0 {
			b.WriteString(", ")
			if n%6 == 0 {
				b.WriteString("\n")
			}
		}
		fmt.Fprintf(&b, "%s %d", k, m[k])
		n++
	}
	return b.String()
}
