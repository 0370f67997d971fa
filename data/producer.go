package data

import "fmt"

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
	whole, rest := p.set.Len()/p.config.BatchSize, p.set.Len()%p.config.BatchSize
	if rest > 0 && !p.config.DropLast {
		whole++
	}
	return whole
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
	indices := p.indices(at)
	views := p.config.Augment.views(p.config.Seed, at.Epoch, indices)
	var batch Batch
	if err := fillViews(p.set, &batch, indices, views); err != nil {
		return produced{err: fmt.Errorf("data: epoch %d, batch %d: %w", at.Epoch, at.Batch, err)}
	}
	apply(views, &batch, p.set.Info())
	return produced{batch: batch}
}

// indices returns the samples of a batch.
func (p *producer) indices(at Position) []int {
	start := at.Batch * p.config.BatchSize
	end := min(start+p.config.BatchSize, p.set.Len())
	if p.config.Shuffle {
		if p.order == nil || p.epoch != at.Epoch {
			p.order, p.epoch = Permutation(p.set.Len(), p.config.Seed, at.Epoch), at.Epoch
		}
		return p.order[start:end]
	}
	indices := make([]int, end-start)
	for i := range indices {
		indices[i] = start + i
	}
	return indices
}
