package pipe

import (
	"runtime"
	"sync"
	"time"

	"penstock.example/schedule"
	"penstock.example/torch"
)

// A sum over replicas waits for other processes, and its worker may have other stages to go on with.
// So it goes on beside the worker, on a goroutine and thread of its own. Those of a worker follow each
// other, as schedule.Simulate has them. The last action of a worker has nothing beside it: the worker
// does it itself, when the others have ended.
//
//	worker    1B0 1B1 ┬─ 0B0 0B1 ┬─ 0RED
//	sums              └─ 1RED ───┘
//
// What a sum holds of another replica may be there until then. Plans count it that long.

// sums are those of a worker that were begun.
type sums struct {
	x      *graphRun
	worker int
	begun  sync.WaitGroup
	before chan struct{} // closed when the one that was begun last has ended
	events []schedule.Event
}

// beside says whether an action goes on beside its worker.
func (g *program) beside(worker, id int) bool {
	return g.Actions[id].Kind == schedule.Reduce && id+1 < g.First[worker+1]
}

// begin begins a sum.
func (s *sums) begin(d torch.Device, threads int, a schedule.Action) {
	before, ended := s.before, make(chan struct{})
	s.before = ended
	s.begun.Go(func() {
		defer close(ended)
		if before != nil {
			<-before
		}
		if s.x.failed.Load() {
			return
		}
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		c := torch.NewCtx(torch.Options{Device: d, Threads: threads})
		c.SetStream(s.x.p.workers[s.worker].stream) // on which the gradients were queued
		defer c.Close()
		finished := false
		defer func() {
			if !finished {
				s.x.fail(&Error{Stage: a.Stage, Direction: a.Kind, Err: cause(recover())})
			}
		}()
		start := time.Since(s.x.begin)
		if err := s.x.task.do(c, a); err != nil {
			s.x.fail(&Error{Stage: a.Stage, Direction: a.Kind, Err: err})
		}
		if s.x.record {
			s.events = append(s.events, schedule.Event{Worker: s.worker, Action: a, Start: start, End: time.Since(s.x.begin), Live: d.Memory().Live})
		}
		finished = true
	})
}

// wait waits for the sums that were begun.
func (s *sums) wait() { s.begun.Wait() }
