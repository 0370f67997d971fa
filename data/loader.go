package data

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"sync"
	"sync/atomic"

	"penstock.example/internal/arg"
)

// ErrClosed is returned by Next after Close.
var ErrClosed = errors.New("data: the loader is closed")

// Position is a place between two batches, for resuming a Loader with the same data and configuration.
type Position struct {
	Epoch int `json:"epoch"` // counted from 0
	Batch int `json:"batch"` // batches delivered in the epoch
}

// ConfigError is returned for an invalid setting.
type ConfigError = arg.ConfigError

// LoaderConfig configures a Loader.
type LoaderConfig struct {
	BatchSize int     // samples, at least 1
	Seed      uint64  // of the order and the augmentation
	Shuffle   bool    // each epoch anew, by Seed; otherwise samples keep the set's order
	Augment   Augment // of images
	DropLast  bool    // an epoch's last batch is left out if it is short
	Prefetch  int     // batches prepared ahead in the background; with 0 Next prepares them itself
	Start     Position
}

// Loader delivers a data set in batches, one epoch after another, without end. Next is for one goroutine
// at a time. Position and Close may be called from any.
type Loader struct {
	set      Dataset
	config   LoaderConfig
	position atomic.Pointer[Position]
	failed   error // the data set's first error

	// order is the permutation of epoch, nil before the first batch and without shuffling. Only
	// produce uses order and epoch.
	order []int
	epoch int

	ready  chan produced // nil without prefetching
	closed context.Context
	close  context.CancelFunc
	wait   sync.WaitGroup
}

type produced struct {
	batch Batch
	err   error
}

// NewLoader returns a Loader, which the caller closes. It returns an error if the configuration is
// invalid or the set is empty.
func NewLoader(set Dataset, c LoaderConfig) (*Loader, error) {
	l := &Loader{set: set, config: c}
	l.position.Store(&c.Start)
	err := cmp.Or(arg.AtLeast("", "BatchSize", c.BatchSize, 1), arg.AtLeast("", "Prefetch", c.Prefetch, 0),
		c.Augment.check(set))
	switch {
	case err != nil:
	case set.Len() == 0:
		err = errors.New("there are no samples; want a set with at least one")
	case l.Batches() == 0:
		err = &ConfigError{Field: "DropLast", Value: true, Problem: "there are fewer samples than in a batch",
			Remedy: "want at least one batch"}
	case c.Start.Epoch < 0 || c.Start.Batch < 0 || c.Start.Batch > l.Batches():
		err = &ConfigError{Field: "Start", Value: c.Start,
			Problem: "the position is of another data set or batch size",
			Remedy:  fmt.Sprintf("want a batch from 0 to %d", l.Batches())}
	}
	if err != nil {
		return nil, named(set.Info().Name, err)
	}
	l.closed, l.close = context.WithCancel(context.Background())
	if c.Prefetch > 0 {
		// The background goroutine itself holds one more batch.
		l.ready = make(chan produced, c.Prefetch-1)
		l.wait.Go(l.prefetch)
	}
	return l, nil
}

// Next returns the next batch, which the caller owns. After the last batch of each epoch it returns
// io.EOF once. A Loader that starts after a last batch returns io.EOF first, so that a resumed run
// does its work at the end of the epoch.
//
// Next blocks until the batch is prepared. If ctx ends, Next returns ctx's error, and the next call
// returns the batch. An error of the data set is final; Position then stays before the failed batch. Next
// returns ErrClosed after Close, or if Close is called meanwhile.
func (l *Loader) Next(ctx context.Context) (Batch, error) {
	select {
	case <-l.closed.Done():
		return Batch{}, ErrClosed
	case <-ctx.Done():
		return Batch{}, ctx.Err()
	default:
	}
	if l.failed != nil {
		return Batch{}, l.failed
	}
	position := l.Position()
	if position.Batch == l.Batches() {
		l.position.Store(&Position{Epoch: position.Epoch + 1})
		return Batch{}, io.EOF
	}

	var next produced
	if l.ready == nil {
		next = l.produce(position)
	} else {
		select {
		case next = <-l.ready:
		case <-ctx.Done():
			return Batch{}, ctx.Err()
		case <-l.closed.Done():
			return Batch{}, ErrClosed
		}
	}
	if next.err != nil {
		l.failed = next.err
		return Batch{}, next.err
	}
	l.position.Store(&Position{position.Epoch, position.Batch + 1})
	return next.batch, nil
}

// Position returns the position of the batch that Next will return. Prefetching does not change it.
func (l *Loader) Position() Position { return *l.position.Load() }

// Batches returns the number of batches in an epoch. The last may be short, without DropLast.
func (l *Loader) Batches() int {
	n := l.set.Len()
	if !l.config.DropLast {
		n += l.config.BatchSize - 1
	}
	return n / l.config.BatchSize
}

// LastBatch returns the rows of an epoch's last batch.
func (l *Loader) LastBatch() int {
	return min(l.config.BatchSize, l.set.Len()-(l.Batches()-1)*l.config.BatchSize)
}

// BatchSize returns LoaderConfig.BatchSize.
func (l *Loader) BatchSize() int { return l.config.BatchSize }

// Close ends the background goroutine and waits for it. It may be called more than once.
func (l *Loader) Close() {
	l.close()
	l.wait.Wait()
}

// prefetch sends batches from Start on until Close is called or a batch fails.
func (l *Loader) prefetch() {
	for from := l.config.Start; ; from.Batch++ {
		if from.Batch == l.Batches() {
			from = Position{Epoch: from.Epoch + 1}
		}
		next := l.produce(from)
		select {
		case l.ready <- next:
		case <-l.closed.Done():
			return
		}
		if next.err != nil {
			return
		}
	}
}

func (l *Loader) produce(at Position) (p produced) {
	start := at.Batch * l.config.BatchSize
	indices := make([]int, min(l.config.BatchSize, l.set.Len()-start))
	for i := range indices {
		indices[i] = start + i
	}
	if l.config.Shuffle {
		if l.order == nil || l.epoch != at.Epoch {
			l.order, l.epoch = permutation(l.set.Len(), l.config.Seed, at.Epoch), at.Epoch
		}
		copy(indices, l.order[start:])
	}
	if err := fillAugmented(l.set, &p.batch, indices,
		l.config.Augment.views(l.config.Seed, at.Epoch, indices)); err != nil {
		return produced{err: fmt.Errorf("data: epoch %d, batch %d: %w", at.Epoch, at.Batch, unreadable{err})}
	}
	return p
}

// unreadable is the error of a sample, such as a damaged picture. Its method OfSample marks it.
type unreadable struct{ error }

func (e unreadable) Unwrap() error { return e.error }
func (unreadable) OfSample()       {}

// stream is a SplitMix64 generator (G. Steele, D. Lea, C. Flood, Fast splittable pseudorandom
// number generators, OOPSLA 2014). math/rand could change between versions of Go, and a resumed run
// needs the order of the original run.
type stream uint64

const golden = 0x9E3779B97F4A7C15 // 2^64 over the golden ratio: SplitMix64's increment

// Purposes, the first word of a stream's seed. Streams of different purposes are independent.
const (
	forOrder = iota + 1
	forAugment
	forSample
	forClass
)

// newStream returns a stream seeded by a sequence of words.
func newStream(words ...uint64) stream {
	state := uint64(0)
	for _, word := range words {
		state = mix((state ^ word) + golden)
	}
	return stream(state)
}

// mix is SplitMix64's output function, a bijection.
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

func (s *stream) next() uint64 {
	*s += golden
	return mix(uint64(*s))
}

// below returns a uniform number in [0, n), for n > 0 (D. Lemire, Fast random integer generation in
// an interval, ACM TOMACS 29, 2019).
func (s *stream) below(n uint64) uint64 {
	high, low := bits.Mul64(s.next(), n)
	if low < n {
		for threshold := -n % n; low < threshold; {
			high, low = bits.Mul64(s.next(), n)
		}
	}
	return high
}

// centred returns a number in [-1, 1), a multiple of 2^-23.
func (s *stream) centred() float32 { return float32(s.next()>>40)/(1<<23) - 1 }

// share returns a number in [0, 1), a multiple of 2^-53.
func (s *stream) share() float64 { return float64(s.next()>>11) / (1 << 53) }

// permutation returns the order in which a shuffling Loader delivers n samples in an epoch: a
// Fisher-Yates shuffle of 0 to n-1. It is the same on every machine and in every version.
func permutation(n int, seed uint64, epoch int) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	s := newStream(forOrder, seed, uint64(epoch))
	for i := n - 1; i > 0; i-- {
		j := s.below(uint64(i) + 1)
		order[i], order[j] = order[j], order[i]
	}
	return order
}
