package pipe

import (
	"runtime"
	"sync"
	"time"

	"penstock.example/internal/stream"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// A sum over replicas waits for other processes, and its worker may have other stages to go on with.
// So it has a goroutine and a thread of its own. The sums of a worker follow each other, as in
// schedule.Simulate. A sum that is a worker's last action runs on the worker.
//
//	worker    1B0 1B1 ┬─ 0B0 0B1 ┬─ 0RED
//	sums              └─ 1RED ───┘
//
// On a GPU a sum has a stream of its own too, so the work that the worker queues does not wait for other
// processes. It begins when the gradients are made, and the host waits for its end.

// sums are the sums that a worker has begun.
type sums struct {
	r      *run
	worker int
	begun  sync.WaitGroup
	before chan struct{} // closed when the latest sum has ended
	events []schedule.Event
}

// beside reports whether a sum runs while its worker goes on.
func (g *program) beside(worker, id int) bool {
	return g.Actions[id].Kind == schedule.Reduce && id+1 < g.First[worker+1]
}

func (s *sums) begin(d torch.Device, threads int, a schedule.Action) {
	before, ended, ready := s.before, make(chan struct{}), s.ready()
	s.before = ended
	s.begun.Go(func() {
		defer close(ended)
		defer ready.Free()
		if before != nil {
			<-before
		}
		if s.r.failed.Load() {
			return
		}
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		c := torch.NewCtx(torch.Options{Device: d, Threads: threads})
		defer c.Close()
		finished := false
		defer func() {
			if !finished {
				s.r.failAt(a, "", cause(recover()))
			}
		}()
		start := time.Since(s.r.begun)
		if err := s.sum(c, a, ready); err != nil {
			s.r.failAt(a, "", err)
		}
		if s.r.record {
			end := time.Since(s.r.begun)
			s.events = append(s.events, schedule.Event{Worker: s.worker, Action: a, Start: start, End: end, Live: d.Memory().Live})
		}
		finished = true
	})
}

// ready is an event of the worker's stream after all gradients that are queued.
func (s *sums) ready() stream.Event { return s.r.p.workers[s.worker].stream.Record() }

func (s *sums) sum(c *torch.Ctx, a schedule.Action, ready stream.Event) error {
	w := s.r.p.workers[s.worker]
	c.SetStream(w.sums)
	defer c.SetStream(w.stream)
	return stream.Beside(stream.Host{}, w.sums, ready, func() error { return s.r.do(c, a) })
}

// last performs a sum that is the worker's last action.
func (s *sums) last(c *torch.Ctx, a schedule.Action) error {
	ready := s.ready()
	defer ready.Free()
	return s.sum(c, a, ready)
}

// wait waits for the sums that were begun.
func (s *sums) wait() { s.begun.Wait() }
