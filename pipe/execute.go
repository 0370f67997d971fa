package pipe

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"penstock/schedule"
	"penstock/torch"
)

// task is what a graph is run for.
type task interface {
	// begin prepares a worker for the run, and end does what is left after its last action. They
	// may panic.
	begin(worker int)
	end(c *torch.Ctx, worker int)
	// undoes says whether a failed run is to be undone, and undo does so on a worker. The workers
	// wait for each other meanwhile, so that no later run has begun anywhere.
	undoes() bool
	undo(worker int)
	// do performs an action on a worker. It may panic.
	do(c *torch.Ctx, a schedule.Action)
	// layer names the layer that was running when the action failed with err, or "".
	layer(a schedule.Action, err error) string
	// waits lists what an action that was done has left for other stages to take over.
	waits(a schedule.Action) []outgoing
}

// execution is a graph being run by all workers at once.
type graphRun struct {
	ctx    context.Context
	graph  *program
	task   task
	spin   bool
	record bool
	ledger *ledger
	// nil but in tests, which delay workers with it: called before each action, and with the id
	// after the last one when a worker is through
	hold func(worker, action int)

	// done tells other workers which actions are over. It is set under mu, so that a waiter that
	// checks under mu misses nothing, and read without.
	done   []atomic.Bool
	failed atomic.Bool
	mu     sync.Mutex
	moved  *sync.Cond
	err    error // the first failure; guarded by mu, and settled when the run is over

	running int           // workers; guarded by mu
	over    chan struct{} // closed when none is running any more

	begin  time.Time
	events [][]schedule.Event // by worker, when recording
}

// execute runs a graph within a run that was entered. It returns when every worker is done with it,
// with the first failure, and with a timeline when recording. A task that undoes is undone when it
// returns an error.
//
//	worker 0   begin, actions, end ──┐ over ── undo, if one has failed
//	worker 1   begin, actions, end ──┘
func (p *Pipe) execute(ctx context.Context, g *program, t task) (*schedule.Timeline, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !p.placed.Load() {
		return nil, ErrNotPlaced
	}
	x := &graphRun{ctx: ctx, graph: g, task: t, done: make([]atomic.Bool, len(g.Actions)), begin: time.Now(),
		running: len(p.workers), over: make(chan struct{})}
	x.spin, x.record = runtime.GOMAXPROCS(0) >= len(p.workers), p.record.Load()
	x.moved = sync.NewCond(&x.mu)
	x.hold, x.ledger = p.hold, newLedger(g, len(p.workers))
	x.events = make([][]schedule.Event, len(p.workers))
	var all sync.WaitGroup
	all.Add(len(p.workers))
	p.start(func(worker int, c *torch.Ctx) {
		defer all.Done()
		defer x.leave(worker)
		x.work(worker, c)
	})
	stop := context.AfterFunc(ctx, func() { x.fail(ctx.Err()) })
	<-x.over
	stop()
	if x.err != nil {
		all.Wait()
		x.ledger.close()
		return nil, x.err
	}
	for w := range p.workers {
		p.safe.raise(w, x.ledger.most(w))
	}
	if !x.record {
		return nil, nil
	}
	timeline := &schedule.Timeline{Workers: len(p.workers)}
	for _, e := range x.events {
		timeline.Events = append(timeline.Events, e...)
	}
	return timeline, nil
}

// work runs a worker's list. After the first failure anywhere no action starts.
func (x *graphRun) work(worker int, c *torch.Ctx) {
	var current schedule.Action
	finished, ending := false, false
	defer c.Close() // before the run is over for its caller, who may count on the memory
	defer func() {
		if x.hold != nil {
			defer x.hold(worker, x.graph.First[worker+1])
		}
		switch {
		case finished:
		case ending:
			x.fail(fmt.Errorf("pipe: gathering the output: %w", cause(recover())))
		default:
			err := cause(recover())
			x.fail(&Error{Stage: current.Stage, MicroBatch: current.MicroBatch, Direction: current.Kind,
				Layer: x.task.layer(current, err), Err: err})
		}
	}()
	c.Device().OwnPeak() // from here on
	x.task.begin(worker)
	for id := x.graph.First[worker]; id < x.graph.First[worker+1]; id++ {
		current = x.graph.Actions[id]
		if x.hold != nil {
			x.hold(worker, id)
		}
		for _, dep := range x.graph.Cross[id] {
			x.wait(dep)
		}
		if err := x.ctx.Err(); err != nil {
			x.fail(err)
		}
		if x.failed.Load() {
			break
		}
		var start time.Duration
		if x.record {
			start = time.Since(x.begin)
		}
		x.task.do(c, current)
		c.Close()
		x.ledger.enter(id, c.Device(), x.task.waits(current))
		if x.record {
			x.events[worker] = append(x.events[worker],
				schedule.Event{Worker: worker, Action: current, Start: start, End: time.Since(x.begin)})
		}
		x.finish(id)
	}
	if ending = true; !x.failed.Load() {
		x.task.end(c, worker)
		x.ledger.ended[worker] = c.Device().OwnPeak()
	}
	finished = true
}

// leave is the end of a worker's part. The last to leave settles how the run has ended: a context
// that ends later is too late.
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
	}
}

// spins is how often a waiter looks before it sleeps. Waking a thread takes longer than most waits
// in a balanced pipeline last.
const spins = 2000

func (x *graphRun) wait(id int) {
	if x.spin {
		for i := 0; i < spins; i++ {
			if x.done[id].Load() || x.failed.Load() {
				return
			}
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

// fail records the first failure and wakes everyone.
func (x *graphRun) fail(err error) {
	x.mu.Lock()
	if x.err == nil && x.running > 0 {
		x.err = err
		x.failed.Store(true)
	}
	x.mu.Unlock()
	x.moved.Broadcast()
}
