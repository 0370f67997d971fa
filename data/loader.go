package data

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"penstock.example/internal/arg"
)

// ErrClosed is returned by Next after Close.
var ErrClosed = errors.New("data: the loader is closed")

// Position is a place between two batches: Batch of them are delivered in epoch Epoch, both counted
// from 0. It is meant to be saved, and a Loader over the same data with the same configuration
// continues from it.
type Position struct {
	Epoch int `json:"epoch"`
	Batch int `json:"batch"`
}

// ConfigError is a setting that is refused.
type ConfigError = arg.ConfigError

// LoaderConfig says how a Loader goes through a data set.
type LoaderConfig struct {
	BatchSize int    // samples, at least 1
	Seed      uint64 // of the order and the augmentation
	// Shuffle delivers in the order of Permutation, a new one each epoch; otherwise it is the data
	// set's
	Shuffle  bool
	DropLast bool    // leave out an epoch's last batch if it is short
	Augment  Augment // of images

	// Prefetch is how many batches are prepared ahead in the background. 0 means none: Next
	// prepares a batch itself. It does not change what is delivered.
	Prefetch int

	// Start is where to begin.
	Start Position
}

// Loader delivers a data set batch by batch and epoch by epoch, without end. Next is for one
// goroutine at a time; Position and Close may be called from any.
type Loader struct {
	producer producer
	failed   error // sticky, of the data set

	mutex    sync.Mutex
	position Position

	ready chan produced // nil without prefetching
	done  chan struct{} // closed by Close
	close sync.Once
	wait  sync.WaitGroup
}

// NewLoader returns a Loader, which the caller closes. It returns an error if the configuration is
// not valid or leaves no batch in an epoch.
func NewLoader(set Dataset, c LoaderConfig) (*Loader, error) {
	of := "data: " + set.Info().Name
	err := cmp.Or(arg.AtLeast(of, "BatchSize", c.BatchSize, 1), arg.AtLeast(of, "Prefetch", c.Prefetch, 0),
		c.Augment.check(of, set))
	if err != nil {
		return nil, err
	}
	p := producer{set: set, config: c}
	switch {
	case set.Len() == 0:
		return nil, errors.New(of + ": there are no samples; want a set with at least one")
	case p.batches() == 0:
		return nil, &ConfigError{Of: of, Field: "BatchSize", Value: c.BatchSize,
			Problem: fmt.Sprintf("%d samples make no whole batch",
				set.Len()), Remedy: "want smaller batches, or DropLast off"}
	case c.Start.Epoch < 0 || c.Start.Batch < 0 || c.Start.Batch > p.batches():
		return nil, &ConfigError{Of: of, Field: "Start", Value: c.Start,
			Problem: "the position is of another data set or batch size",
			Remedy:  fmt.Sprintf("want a batch from 0 to %d", p.batches())}
	}

	l := &Loader{producer: p, position: c.Start, done: make(chan struct{})}
	if c.Prefetch > 0 {
		// One batch waits in the producer's hands.
		l.ready = make(chan produced, c.Prefetch-1)
		l.wait.Go(func() { l.producer.run(c.Start, l.ready, l.done) })
	}
	return l, nil
}

// Next returns the next batch. The caller owns it. After the last batch of
// each epoch it returns io.EOF once, and then goes on with the next epoch. A Position that was
// taken before that io.EOF leads to it again, so that what a caller does at the end of an epoch is
// neither lost nor done twice when a run is resumed.
//
// Next blocks until the batch is prepared. If ctx is done it returns ctx's error and loses nothing:
// the next call returns the batch. An error of the data set is final; Position then stays at the
// batch that failed. After Close, and when Close is called meanwhile, Next returns ErrClosed.
func (l *Loader) Next(ctx context.Context) (Batch, error) {
	select {
	case <-l.done:
		return Batch{}, ErrClosed
	case <-ctx.Done():
		return Batch{}, ctx.Err()
	default:
	}
	if l.failed != nil {
		return Batch{}, l.failed
	}
	position := l.Position()
	if position.Batch == l.producer.batches() {
		l.moveTo(Position{Epoch: position.Epoch + 1})
		return Batch{}, io.EOF
	}

	var next produced
	if l.ready == nil {
		next = l.producer.produce(position)
	} else {
		select {
		case next = <-l.ready:
		case <-ctx.Done():
			return Batch{}, ctx.Err()
		case <-l.done:
			return Batch{}, ErrClosed
		}
	}
	if next.err != nil {
		l.failed = next.err
		return Batch{}, next.err
	}
	l.moveTo(Position{position.Epoch, position.Batch + 1})
	return next.batch, nil
}

// Position returns the position of the next batch that Next will deliver, whatever is already
// prefetched.
func (l *Loader) Position() Position {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.position
}

func (l *Loader) moveTo(p Position) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.position = p
}

// Batches returns the number of batches in an epoch.
func (l *Loader) Batches() int { return l.producer.batches() }

// LastBatch returns the rows of an epoch's last batch, which has fewer than the others if it is short.
func (l *Loader) LastBatch() int {
	last := l.producer.batches() - 1
	return min(l.producer.config.BatchSize, l.producer.set.Len()-last*l.producer.config.BatchSize)
}

// BatchSize returns the configuration's.
func (l *Loader) BatchSize() int { return l.producer.config.BatchSize }

// Close stops prefetching and waits until the background goroutine has ended. It may be called more
// than once.
func (l *Loader) Close() {
	l.close.Do(func() { close(l.done) })
	l.wait.Wait()
}

// producer makes the batch of any position. It belongs to one goroutine: the Loader's background
// one if there is one, otherwise Next's caller.
type producer struct {
	set    Dataset
	config LoaderConfig

	order []int // of epoch; nil before the first batch and without shuffling
	epoch int
}

// produced is a batch or the error that came instead.
type produced struct {
	batch Batch
	err   error
}

// batches returns the number of batches in an epoch.
func (p *producer) batches() int {
	n := p.set.Len() + p.config.BatchSize - 1
	if p.config.DropLast {
		n = p.set.Len()
	}
	return n / p.config.BatchSize
}

// run sends the batches from a position on, epoch after epoch, until done is closed or a batch
// fails.
func (p *producer) run(from Position, to chan<- produced, done <-chan struct{}) {
	for ; ; from.Batch++ {
		if from.Batch == p.batches() {
			from = Position{Epoch: from.Epoch + 1}
		}
		next := p.produce(from)
		select {
		case to <- next:
		case <-done:
			return
		}
		if next.err != nil {
			return
		}
	}
}

func (p *producer) produce(at Position) produced {
	start := at.Batch * p.config.BatchSize
	indices := make([]int, min(p.config.BatchSize, p.set.Len()-start))
	for i := range indices {
		indices[i] = start + i
	}
	if p.config.Shuffle {
		if p.order == nil || p.epoch != at.Epoch {
			p.order, p.epoch = Permutation(p.set.Len(), p.config.Seed, at.Epoch), at.Epoch
		}
		copy(indices, p.order[start:])
	}
	views := p.config.Augment.views(p.config.Seed, at.Epoch, indices)
	var batch Batch
	if err := fillViews(p.set, &batch, indices, views); err != nil {
		return produced{err: fmt.Errorf("data: epoch %d, batch %d: %w", at.Epoch, at.Batch, err)}
	}
	apply(views, &batch, p.set.Info())
	return produced{batch: batch}
}
