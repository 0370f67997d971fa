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

	"penstock.example/schedule"
	"penstock.example/torch"
)

// task is what a graph is run for.
type task interface {
	// begin prepares a worker for the run. end does what is left after its last action. Both may
	// panic.
	begin(worker int)
	end(c *torch.Ctx, worker int)
	// undoes says whether a failed run is to be undone, and undo does so on a worker. No worker
	// goes on to a later run before the failed one has ended on all of them.
	undoes() bool
	undo(worker int)
	// do performs an action on a worker. It may panic.
	do(c *torch.Ctx, a schedule.Action) error
	// expect says what will be sent, so that it can arrive while its receiver computes. expects says
	// whether there is memory for that.
	expect(c *torch.Ctx, send schedule.Action) error
	expects() bool
	// settle ends a send to another process that was received before the next action of its worker
	// begins.
	settle(send schedule.Action) error
	// meets says of a send that do waits in it for the matching receive to begin. abort ends such
	// waits, and those of receives, when the run has failed with err.
	meets(send schedule.Action) bool
	abort(err error)
	// layer is the name of the layer that was running when the action failed with err, or "".
	layer(a schedule.Action, err error) string
	// waits appends to a list what an action has made for other stages to receive. ofBatch says of a
	// tensor that it is in the memory of the batch, which is not counted.
	waits(list []outgoing, a schedule.Action) []outgoing
	ofBatch(t *torch.Tensor) bool
}

// graphRun is a run of a graph by all workers of this process at once.
type graphRun struct {
	p      *Pipe
	ctx    context.Context
	graph  *program
	task   task
	cores  int64
	record bool
	ledger *ledger
	// hold delays workers in tests, and is nil elsewhere. It is called before each action with its
	// id, and at the end of a worker with the id after its last action.
	hold func(worker, action int)

	// done says which actions have ended. It is written under mu and read without it. A waiter that
	// looks under mu therefore misses nothing.
	done   []atomic.Bool
	failed atomic.Bool
	mu     sync.Mutex
	moved  *sync.Cond
	err    error // the first failure; guarded by mu, and final when the run is over

	running int           // workers; guarded by mu
	over    chan struct{} // closed when none is running any more

	begin  time.Time
	events [][]schedule.Event // by worker, when recording
}

// execute runs a graph within a run that was entered. It returns when every worker has ended, with
// the first failure. It returns a timeline if the pipe records. A failed task that can be undone
// has been undone when execute returns.
//
//	worker 0   begin, actions, end ──┐ over ── undo, if one has failed
//	worker 1   begin, actions, end ──┘
func (p *Pipe) execute(ctx context.Context, g *program, t task) (*schedule.Timeline, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !p.placed.Load() && t.(*minibatch).batch.Within == nil {
		return nil, ErrNotPlaced
	}
	record := p.record.Load()
	if record { // the clocks of all processes begin together
		if _, err := meet(ctx, p, "the beginning of a recorded run", 0, nil); err != nil {
			return nil, err
		}
	}
	x := &graphRun{p: p, ctx: ctx, graph: g, task: t, done: make([]atomic.Bool, len(g.Actions)), begin: time.Now(),
		running: len(p.mine), over: make(chan struct{})}
	x.cores, x.record = int64(runtime.GOMAXPROCS(0)), record
	busy := int64(len(p.mine) * p.cfg.Threads)
	runningThreads.Add(busy)
	defer runningThreads.Add(-busy)
	x.moved = sync.NewCond(&x.mu)
	x.hold, x.ledger = p.hold, newLedger(p, g, t, x.here)
	x.events = make([][]schedule.Event, len(p.workers))
	var all sync.WaitGroup
	all.Add(len(p.mine))
	p.start(func(worker int, c *torch.Ctx) {
		defer all.Done()
		defer x.leave(worker)
		x.work(worker, c)
	})
	var watcher sync.WaitGroup
	watcher.Go(x.watch)
	<-x.over
	watcher.Wait() // what it has begun to abort
	if x.err != nil {
		all.Wait()
		x.ledger.close()
		return nil, p.lost(x.err)
	}
	for _, w := range p.mine {
		p.safe.raise(w, x.ledger.most(w))
	}
	if !x.record {
		return nil, nil
	}
	recorded, err := meet(ctx, p, "what was recorded", slices.Concat(x.events...), nil)
	if err != nil {
		return nil, err
	}
	events := slices.Concat(ofMine(p.cfg, recorded)...)
	slices.SortStableFunc(events, func(a, b schedule.Event) int { return a.Worker - b.Worker })
	return &schedule.Timeline{Workers: len(p.workers), Events: events}, nil
}

// here says whether a worker is in this process.
func (x *graphRun) here(worker int) bool { return x.p.workers[worker] != nil }

// watch fails the run when its context ends, or the group has failed.
func (x *graphRun) watch() {
	var failed <-chan struct{}
	if g := x.p.cfg.Group; g != nil {
		failed = g.Failed()
	}
	select {
	case <-x.ctx.Done():
		x.fail(x.ctx.Err())
	case <-failed:
		x.fail(nil)
	case <-x.over:
	}
}

// work performs a worker's actions in order. After a failure anywhere no action starts.
func (x *graphRun) work(worker int, c *torch.Ctx) {
	var current schedule.Action
	var waiting []outgoing
	finished, ending := false, ""
	defer c.Close() // before the run is over for its caller, who may count on the memory
	beside := sums{x: x, worker: worker}
	defer beside.wait() // when a failure is known, which ends them, and before anything is undone
	defer func() {
		if x.hold != nil {
			defer x.hold(worker, x.graph.First[worker+1])
		}
		switch {
		case finished:
		case ending != "":
			err := cause(recover())
			x.fail(fmt.Errorf("pipe: %s: %w%s", ending, err, remedy(err)))
		default:
			err := cause(recover())
			x.fail(&Error{Stage: current.Stage, MicroBatch: current.MicroBatch, Direction: current.Kind,
				Layer: x.task.layer(current, err), Err: err})
		}
		if !finished {
			_ = torch.Try(x.p.workers[worker].leave) // the failure is known
		}
	}()
	c.Device().OwnPeak() // from here on
	clock := newClock(c, time.Since(x.begin))
	defer clock.free()
	x.task.begin(worker)
	if x.task.expects() {
		for _, send := range x.graph.expected[worker] {
			current = send.Matching()
			if err := x.task.expect(c, send); err != nil {
				x.fail(&Error{Stage: current.Stage, MicroBatch: current.MicroBatch, Direction: current.Kind, Err: err})
				break
			}
		}
	}
	for id := x.graph.First[worker]; id < x.graph.First[worker+1]; id++ {
		current = x.graph.Actions[id]
		if x.hold != nil {
			x.hold(worker, id)
		}
		for _, dep := range x.graph.Cross[id] {
			if send := x.graph.Actions[dep]; x.here(x.graph.Worker[dep]) &&
				(!current.Kind.Receive() || current.Matching() != send || !x.task.meets(send)) {
				x.wait(dep)
			}
		}
		for _, send := range x.graph.settled[id] {
			if receive, _ := x.graph.IndexOf(send.Matching()); x.here(x.graph.Worker[receive]) {
				x.wait(receive)
			} else if err := x.task.settle(send); err != nil {
				x.fail(&Error{Stage: send.Stage, MicroBatch: send.MicroBatch, Direction: send.Kind, Err: err})
			}
		}
		if err := x.ctx.Err(); err != nil {
			x.fail(err)
		}
		if x.failed.Load() {
			break
		}
		if x.graph.beside(worker, id) {
			beside.begin(c.Device(), x.p.cfg.Threads, current)
			x.ledger.enter(id, c.Device(), nil)
			x.finish(id)
			continue
		}
		do := x.task.do
		if current.Kind == schedule.Reduce {
			do = beside.last
			beside.wait()
		}
		if x.record {
			clock.mark(c)
		}
		if err := do(c, current); err != nil {
			x.fail(&Error{Stage: current.Stage, MicroBatch: current.MicroBatch, Direction: current.Kind, Err: err})
			break
		}
		c.Close()
		waiting = x.task.waits(waiting[:0], current)
		x.ledger.enter(id, c.Device(), waiting)
		if x.record {
			clock.mark(c)
			x.events[worker] = append(x.events[worker],
				schedule.Event{Worker: worker, Action: current, Live: c.Device().Memory().Live})
		}
		x.finish(id)
	}
	beside.wait()
	if ending = "gathering the output"; !x.failed.Load() {
		x.task.end(c, worker)
		x.ledger.ended[worker] = c.Device().OwnPeak()
	}
	ending = fmt.Sprintf("the work of %v", c.Device())
	x.p.workers[worker].leave()
	for i := range x.events[worker] {
		x.events[worker][i].Start, x.events[worker][i].End = clock.at(2*i), clock.at(2*i+1)
	}
	x.events[worker] = append(x.events[worker], beside.events...)
	slices.SortStableFunc(x.events[worker], func(a, b schedule.Event) int { return cmp.Compare(a.Start, b.Start) })
	finished = true
}

// leave ends a worker's part. With the last worker the result of the run is final: a context that
// ends later does not fail it.
func (x *graphRun) leave(worker int) {
	x.mu.Lock()
	if x.running--; x.running == 0 {
		close(x.over)
	}
	x.mu.Unlock()
	if !x.task.undoes() {
		return
	}
	if <-x.over; x.err != nil {
		x.task.undo(worker)
		_ = torch.Try(x.p.workers[worker].leave)
	}
}

// spinTime is how long a waiter looks before it sleeps, where the threads of this process's runs all have
// a core: about as long as it takes to wake a thread on a core that has gone idle. So a wait costs at most
// twice what it must.
const spinTime = time.Millisecond

// runningThreads counts the threads of the workers whose runs go on in this process: of pipes, and of replicas.
var runningThreads atomic.Int64

func (x *graphRun) wait(id int) {
	for began := time.Now(); runningThreads.Load() <= x.cores && time.Since(began) < spinTime; {
		if x.done[id].Load() || x.failed.Load() {
			return
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for !x.done[id].Load() && !x.failed.Load() {
		x.moved.Wait()
	}
}

func (x *graphRun) finish(id int) {
	if !x.graph.awaited[id] {
		return
	}
	x.mu.Lock()
	x.done[id].Store(true)
	x.mu.Unlock()
	x.moved.Broadcast()
}

// fail records the first failure and wakes all waiters. After the group has failed that is the group's, whatever err
// is: links and communicators do not always tell of it.
func (x *graphRun) fail(err error) {
	if g := x.p.cfg.Group; g != nil {
		err = cmp.Or(g.Err(), err)
	}
	x.mu.Lock()
	first := x.err == nil && x.running > 0
	if first {
		x.err = err
		x.failed.Store(true)
	}
	x.mu.Unlock()
	x.moved.Broadcast()
	if first {
		x.task.abort(err)
	}
}

// Error is the failure of an action in a run, with its stage, micro-batch and layer.
type Error struct {
	Stage, MicroBatch int
	Layer             string        // full dotted name; "loss" for the loss; "" when no layer was running
	Direction         schedule.Kind // of the action
	Err               error         // *torch.Error, *PanicError, ErrGoexit, or that of a link
}

// Error gives where it failed, the cause and, if there is one, the remedy.
func (e *Error) Error() string {
	s := fmt.Sprintf("pipe: stage %d, micro-batch %d", e.Stage, e.MicroBatch)
	if e.Layer != "" {
		s += fmt.Sprintf(", layer %q", e.Layer)
	}
	return s + fmt.Sprintf(", %v: %s", e.Direction, e.text())
}

// text gives the cause and, if there is one, the remedy.
func (e *Error) text() string { return e.Err.Error() + remedy(e.Err) }

// remedy says what to do about an error, or nothing.
func remedy(err error) string {
	switch {
	case errors.Is(err, torch.ErrOutOfMemory):
		return "; use more chunks, checkpoint policy always, more stages, or a higher limit"
	case errors.Is(err, torch.ErrDeviceLost):
		return "; a kernel failed here or before, as by an index or a class out of range: restart the process, which cannot use the GPU any more"
	}
	return ""
}

// Unwrap is the cause.
func (e *Error) Unwrap() error { return e.Err }
