package pipe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"penstock.example/internal/engine"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// pass is one execution of a part of a program by all workers of this process at once.
type pass struct {
	program     *program
	ctx         context.Context
	parcelBytes []int64       // by receive: bytes of its parcel that nothing else holds
	done        []atomic.Bool // by action; written under mu, so that a waiter under mu misses nothing
	failed      atomic.Bool
	mu          sync.Mutex
	progress    *sync.Cond    // an action has ended, or the pass has failed
	err         error         // the first failure; guarded by mu, and final when the pass is over
	running     int           // number of workers that have not left; guarded by mu
	ended       chan struct{} // closed when no worker is running
	undo        []func()      // by worker, in training
	cores       int64         // that Go uses
	record      bool
	start       time.Time
	events      [][]schedule.Event // by worker, when recording
}

// execute performs a part of the plan's program, after enter. It returns the first failure when
// every worker has ended. It undoes a training run that fails.
func (r *run) execute(ctx context.Context, g *program) (*schedule.Timeline, error) {
	p := r.p
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !p.placed.Load() && r.batch.Within == nil {
		return nil, ErrNotPlaced
	}
	record := p.record.Load()
	if record { // the clocks of all processes begin together
		if _, err := meet(ctx, p, "the beginning of a recorded run", 0, nil); err != nil {
			return nil, err
		}
	}
	n := len(g.Actions)
	r.pass = &pass{program: g, ctx: ctx, done: make([]atomic.Bool, n), parcelBytes: make([]int64, n),
		running: len(p.mine), ended: make(chan struct{}), cores: int64(runtime.GOMAXPROCS(0)),
		undo: make([]func(), len(p.workers)), record: record, start: time.Now(),
		events: make([][]schedule.Event, len(p.workers))}
	r.progress = sync.NewCond(&r.mu)
	busy := int64(len(p.mine) * p.cfg.Threads)
	runningThreads.Add(busy)
	defer runningThreads.Add(-busy)
	now := r.pass
	p.submit.Lock()
	undo := r.countStep()
	wait := p.start(func(worker int, c *torch.Ctx) {
		defer r.leavePass(now, worker)
		r.work(worker, c)
	})
	p.submit.Unlock()
	var watcher sync.WaitGroup
	watcher.Go(r.watch)
	<-r.ended
	watcher.Wait() // the watcher may abort the link
	if r.err != nil {
		wait()
		undo()
		return nil, p.failGroup(r.err)
	}
	if !record {
		return nil, nil
	}
	recorded, err := meet(ctx, p, "what was recorded", slices.Concat(r.events...), nil)
	if err != nil {
		return nil, err
	}
	events := slices.Concat(ofReplica(p.cfg, recorded)...)
	slices.SortStableFunc(events, func(a, b schedule.Event) int { return a.Worker - b.Worker })
	return &schedule.Timeline{Workers: len(p.workers), Events: events}, nil
}

func (r *run) workerHere(worker int) bool { return r.p.workers[worker] != nil }

// watch fails the pass when its context ends, or when the group fails.
func (r *run) watch() {
	var failed <-chan struct{}
	if g := r.p.cfg.Group; g != nil {
		failed = g.Failed()
	}
	select {
	case <-r.ctx.Done():
		r.fail(r.ctx.Err())
	case <-failed:
		r.fail(nil)
	case <-r.ended:
	}
}

// work performs a worker's actions in order. After a failure anywhere no action starts.
func (r *run) work(worker int, c *torch.Ctx) {
	w, g, end := r.p.workers[worker], r.program, r.program.First[worker+1]
	hold, ledger := r.p.hold, r.ledger(worker)
	var current schedule.Action
	finished, phase := false, ""
	defer c.Close() // before the pass is over: the caller may count on the memory
	replicaSums := sums{r: r, worker: worker}
	defer replicaSums.wait() // before anything is undone; a known failure ends the sums
	defer func() {
		defer hold(worker, end)
		if finished {
			return
		}
		if err := torch.Caught(recover()); phase != "" {
			r.fail(fmt.Errorf("pipe: %s: %w%s", phase, err, remedy(err)))
		} else {
			r.failAt(current, r.layer(current, err), err)
		}
		_ = torch.Try(w.drain) // the failure is known
	}()
	engine.OwnPeak(c.Device()) // begins the peak of the pass
	base, begun := engine.Now(c), time.Since(r.start)
	marks := []engine.Moment{base} // beginnings and ends of actions, which a GPU tells at the end
	mark := func() {
		if r.record {
			marks = append(marks, engine.Now(c))
		}
	}
	defer func() {
		for _, m := range marks {
			m.Free()
		}
	}()
	if r.training {
		r.undo[worker] = r.remember(worker)
	}
	for at := g.First[worker]; at < end && r.receivesAhead() && !r.failed.Load(); at++ {
		if current = g.Actions[at]; current.Kind.Receive() {
			if err := r.linkOf(current).Expect(c, current.Matching()); err != nil {
				r.failAt(current, "", err)
			}
		}
	}
	for id := g.First[worker]; id < end; id++ {
		current = g.Actions[id]
		if hold(worker, id); !r.await(id) {
			break
		}
		if current.Kind == schedule.Reduce {
			replicaSums.begin(current)
			ledger.note(id)
			r.finish(id)
			continue
		}
		mark()
		if err := r.do(c, current); err != nil {
			r.failAt(current, "", err)
			break
		}
		c.Close()
		ledger.note(id)
		if mark(); r.record {
			e := schedule.Event{Worker: worker, Action: current, Live: c.Device().Memory().Live}
			r.events[worker] = append(r.events[worker], e)
		}
		r.finish(id)
	}
	replicaSums.wait()
	if phase = "gathering the output"; !r.failed.Load() {
		if r.gathers && worker == r.p.last().worker {
			r.outputs = r.gather(c)
		}
		r.p.memory.raise(worker, max(ledger.most, engine.OwnPeak(w.device)))
	}
	phase = fmt.Sprintf("the work of %v", c.Device())
	w.drain()
	for i := range r.events[worker] {
		e := &r.events[worker][i]
		e.Start, e.End = begun+marks[2*i+1].Since(base), begun+marks[2*i+2].Since(base)
	}
	r.events[worker] = append(r.events[worker], replicaSums.events...)
	byStart := func(a, b schedule.Event) int { return cmp.Compare(a.Start, b.Start) }
	slices.SortStableFunc(r.events[worker], byStart)
	finished = true
}

// await waits for the dependencies of an action. It returns false if the pass has failed.
func (r *run) await(id int) bool {
	g, current := r.program, r.program.Actions[id]
	for _, dep := range g.Deps[id] {
		if send := g.Actions[dep]; g.Worker[dep] != g.Worker[id] && r.workerHere(g.Worker[dep]) &&
			(!current.Kind.Receive() || current.Matching() != send || !r.linkOf(send).Meets(send)) {
			r.waitFor(dep)
		}
	}
	for _, send := range g.settled[id] {
		if receive, _ := g.IndexOf(send.Matching()); r.workerHere(g.Worker[receive]) {
			r.waitFor(receive)
		} else if err := r.linkOf(send).Settle(send); err != nil {
			r.failAt(send, "", err)
		}
	}
	if err := r.ctx.Err(); err != nil {
		r.fail(err)
	}
	return !r.failed.Load()
}

// receivesAhead reports whether parcels may arrive while their receivers compute. With the policy
// Optimal they may not: its plans count their memory from the receive on.
func (r *run) receivesAhead() bool {
	return r.p.remote != nil && !r.p.optimal() &&
		(r.plan == nil || r.plan.plan.Program.Capacity != schedule.Meet)
}

// leavePass ends a worker's part. When the last worker leaves, the result of the pass is final: a
// context that ends later does not fail it. In training each worker waits for all, and undoes a
// failed run.
func (r *run) leavePass(x *pass, worker int) {
	x.mu.Lock()
	if x.running--; x.running == 0 {
		close(x.ended)
	}
	x.mu.Unlock()
	if !r.training {
		return
	}
	if <-x.ended; x.err != nil && x.undo[worker] != nil {
		x.undo[worker]()
		_ = torch.Try(r.p.workers[worker].drain)
	}
}

// spinTime is how long a waiter polls before it sleeps, if each thread has a core. Waking a
// sleeping thread takes about as long. So a wait takes at most twice as long as it must.
const spinTime = time.Millisecond

// runningThreads counts the intra-op threads of all runs of this process.
var runningThreads atomic.Int64

func (r *run) waitFor(id int) {
	for began := time.Now(); runningThreads.Load() <= r.cores && time.Since(began) < spinTime; {
		if r.done[id].Load() || r.failed.Load() {
			return
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for !r.done[id].Load() && !r.failed.Load() {
		r.progress.Wait()
	}
}

func (r *run) finish(id int) {
	r.mu.Lock()
	r.done[id].Store(true)
	r.mu.Unlock()
	r.progress.Broadcast()
}

func (r *run) failAt(a schedule.Action, layer string, err error) {
	r.fail(&Error{Stage: a.Stage, MicroBatch: a.MicroBatch, Direction: a.Kind, Layer: layer, Err: err})
}

// fail records the first failure and wakes all waiters, also on links. It prefers the group's
// failure to err, which may be a consequence.
func (r *run) fail(err error) {
	if g := r.p.cfg.Group; g != nil {
		err = cmp.Or(g.Err(), err)
	}
	r.mu.Lock()
	first := r.err == nil && r.running > 0
	if first {
		r.err = err
		r.failed.Store(true)
	}
	r.mu.Unlock()
	r.progress.Broadcast()
	if first {
		_ = r.p.failGroup(err)
	}
}

// Error is the failure of an action in a run, with its stage, micro-batch and layer.
type Error struct {
	Stage, MicroBatch int
	Layer             string        // full dotted name; "loss" for the loss; "" when no layer was running
	Direction         schedule.Kind // of the action
	Err               error         // a *torch.Error, a *PanicError, or the error of a link
}

func (e *Error) Error() string {
	s := fmt.Sprintf("pipe: stage %d, micro-batch %d", e.Stage, e.MicroBatch)
	if e.Layer != "" {
		s += fmt.Sprintf(", layer %q", e.Layer)
	}
	return s + fmt.Sprintf(", %v: %s", e.Direction, e.text())
}

func (e *Error) text() string { return e.Err.Error() + remedy(e.Err) }

func remedy(err error) string {
	switch {
	case errors.Is(err, torch.ErrOutOfMemory):
		return "; use more chunks, checkpoint policy always, more stages, or a higher limit"
	case errors.Is(err, torch.ErrDeviceLost):
		return "; a kernel failed here or before, perhaps on an index out of range: restart the process"
	}
	return ""
}

func (e *Error) Unwrap() error { return e.Err }
