package schedule_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock.example/internal/must"
	"penstock.example/schedule"
)

// one is a unit for each computation.
func one(a schedule.Action) time.Duration { return schedule.Unit(a) / time.Millisecond }

// Where a value leaves, arrives and is waited for, by hand: computations take 1, the latency is 3, and
// its bytes take 2.
func TestLinks(t *testing.T) {
	links := schedule.Links{Cost: func(schedule.Action) schedule.Transfer { return schedule.Transfer{Latency: 3, Duration: 2} }}
	for capacity, want := range map[int]string{
		// 0F0 ends at 1, its value leaves until 3 and arrives at 6. That of 0F1 leaves from 3, when the
		// link is free, and arrives at 8. Likewise back: 1B0 ends at 10 and arrives at 15, the next
		// leaves from 12 and arrives at 17.
		0: "0F0 0 0F1 1 0B0 15 0B1 17 | 1F0 6 1F1 8 1B0 9 1B1 10",
		// Worker 0 hears at 9 that the first value was received at 6, sends the second, which arrives at
		// 14. Back: sent at 16, received at 21, heard of at 24.
		1: "0F0 0 0F1 1 0B0 21 0B1 29 | 1F0 6 1F1 14 1B0 15 1B1 16",
		// The same, and worker 0 computes nothing until it hears.
		schedule.Meet: "0F0 0 0F1 9 0B0 22 0B1 31 | 1F0 6 1F1 15 1B0 16 1B1 25",
	} {
		timeline := must.Get(links.Simulate(gpipe(t,
			schedule.Config{Stages: 2, MicroBatches: 2, Capacity: capacity}), one))(t)
		rows := make([]string, 2)
		for _, e := range timeline.Events {
			if !e.Action.Kind.Transfer() {
				rows[e.Worker] += fmt.Sprintf("%v %d ", e.Action, e.Start)
			}
		}
		if got := strings.TrimSpace(rows[0]) + " | " + strings.TrimSpace(rows[1]); got != want {
			t.Errorf("capacity %d: %s, want %s", capacity, got, want)
		}
	}
}

// A value costs what its own send says: the slow one does not delay another link, and what is on one
// worker costs nothing.
func TestLinksOfTheirOwn(t *testing.T) {
	p := gpipe(t, schedule.Config{Stages: 4, MicroBatches: 1, Worker: []int{0, 0, 1, 2},
		Skips: []schedule.Edge{{From: 0, To: 3}}})
	links := schedule.Links{Cost: func(send schedule.Action) schedule.Transfer {
		if send.Peer == 3 && send.Stage == 0 {
			return schedule.Transfer{Duration: 20}
		}
		return schedule.Transfer{Duration: time.Duration(send.MicroBatch + 1)}
	}}
	// Forward: 0F0 ends at 1 and its skip arrives at 21. 1F0 ends at 2, its value is on worker 1 at 3,
	// and that of 2F0 on worker 2 at 5, where 3F0 waits for the skip. Back: 3B0 ends at 23, 2B0 runs
	// from 24 to 25, 1B0 from 26 and 0B0 from 27; the skip's gradient was there at 24.
	took, err := links.Simulate(p, one)
	if err != nil || took.Makespan() != 28 {
		t.Errorf("takes %d, want 28; %v", took.Makespan(), err)
	}
}

// The simulator agrees with a clock that goes on by one at a time.
func TestLinksAgainstAClock(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawProgram(t)
		took := drawDurations(t, p.Stages)
		duration := func(a schedule.Action) time.Duration {
			if a.Kind.Transfer() || a.Kind == schedule.Reduce {
				return 0
			}
			return took(a) / time.Millisecond
		}
		costs := rapid.SliceOfN(rapid.IntRange(0, 9), 2*p.Stages*p.Stages, 2*p.Stages*p.Stages).Draw(t,
			"costs")
		links := schedule.Links{
			Cost: func(send schedule.Action) schedule.Transfer {
				at := 2 * (send.Stage*p.Stages + send.Peer)
				return schedule.Transfer{Latency: time.Duration(costs[at]),
					Duration: time.Duration(costs[at+1])}
			}}
		got := must.Get(links.Simulate(p, duration))(t)
		want := newTicker(p, duration, links).run(t)
		for _, e := range got.Events {
			if start := want[e.Action]; start != e.Start && !e.Action.Kind.Transfer() {
				t.Fatalf("%v starts at %d, want %d\n%v", e.Action, e.Start, start, p)
			}
		}
	})
}

// ticker runs a program by a clock: at every tick all that can begin begins.
type ticker struct {
	p        *schedule.Program
	duration func(schedule.Action) time.Duration
	links    schedule.Links
	home     []int
	now      time.Duration
	next     []int                             // by worker
	until    []time.Duration                   // by worker: when the running action ends
	sent     []schedule.Action                 // by worker: the send after which it waits
	start    map[schedule.Action]time.Duration // of actions that have begun
	queue    map[[2]int][]schedule.Action      // by link: sends that have ended and have not left
	free     map[[2]int]time.Duration          // by link
	arrive   map[schedule.Action]time.Duration // by send
}

func newTicker(p *schedule.Program, duration func(schedule.Action) time.Duration,
	links schedule.Links) *ticker {
	return &ticker{p: p, duration: duration, links: links, home: p.Placement(),
		next: make([]int, len(p.Workers)), until: make([]time.Duration, len(p.Workers)),
		sent: make([]schedule.Action, len(p.Workers)), start: map[schedule.Action]time.Duration{},
		queue: map[[2]int][]schedule.Action{}, free: map[[2]int]time.Duration{},
		arrive: map[schedule.Action]time.Duration{}}
}

func (k *ticker) run(t *rapid.T) map[schedule.Action]time.Duration {
	for ; k.now < math.MaxInt16; k.now++ {
		for again := true; again; {
			again = false
			for w := range k.p.Workers {
				again = k.begin(w) || again
			}
			for link := range k.queue {
				again = k.depart(link) || again
			}
		}
		left := false
		for w, actions := range k.p.Workers {
			left = left || k.next[w] < len(actions)
		}
		if !left {
			return k.start
		}
	}
	t.Fatalf("no end\n%v", k.p)
	return nil
}

func (k *ticker) crosses(a schedule.Action) bool {
	return a.Kind.Transfer() && k.home[a.Stage] != k.home[a.Peer]
}

func (k *ticker) neighbours(a schedule.Action) bool { return max(a.Stage-a.Peer, a.Peer-a.Stage) == 1 }

// heard reports whether the sender knows by now of something that happened at the receiver.
func (k *ticker) heard(send, receive schedule.Action) bool {
	when, happened := k.start[receive]
	return happened && when+k.links.Cost(send).Latency <= k.now
}

// begin begins the next action of a worker if it can.
func (k *ticker) begin(w int) bool {
	if k.next[w] == len(k.p.Workers[w]) || k.until[w] > k.now {
		return false
	}
	if s := k.sent[w]; s.Kind != 0 { // nothing waits
		if !k.heard(s, s.Matching()) {
			return false
		}
		k.sent[w] = schedule.Action{}
	}
	a := k.p.Workers[w][k.next[w]]
	if k.crosses(a) && a.Kind.Receive() {
		if at, left := k.arrive[a.Matching()]; !left || at > k.now {
			return false
		}
	}
	if k.crosses(a) && a.Kind.Send() && k.neighbours(a) && k.p.Capacity > 0 && a.MicroBatch >= k.p.Capacity {
		earlier := a.Matching()
		earlier.MicroBatch -= k.p.Capacity
		if !k.heard(a, earlier) {
			return false
		}
	}
	k.start[a], k.until[w] = k.now, k.now+k.duration(a)
	k.next[w]++
	if k.crosses(a) && a.Kind.Send() {
		link := [2]int{w, k.home[a.Peer]}
		k.queue[link] = append(k.queue[link], a)
		if k.p.Capacity == schedule.Meet && k.neighbours(a) {
			k.sent[w] = a
		}
	}
	return true
}

// depart lets the next value of a link leave if it can.
func (k *ticker) depart(link [2]int) bool {
	if len(k.queue[link]) == 0 || k.free[link] > k.now {
		return false
	}
	send := k.queue[link][0]
	k.queue[link] = k.queue[link][1:]
	cost := k.links.Cost(send)
	k.free[link] = k.now + cost.Duration
	k.arrive[send] = k.free[link] + cost.Latency
	return true
}
