package train

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"penstock.example/data"
	"penstock.example/group"
	"penstock.example/internal/arg"
	"penstock.example/nn"
	"penstock.example/profile"
	"penstock.example/torch"
)

// ThreadsConfig describes the training for which a number of threads is chosen.
type ThreadsConfig struct {
	Most   int // threads that each device may have, such as the cores of the process divided by its devices
	Batch  int // rows
	Chunks int // micro-batches; 0 is 1
	// Profile has the device, and how the layers will be run. Its Threads does not count.
	Profile profile.Config
	// Loss is measured with the layers. Nil is none.
	Loss nn.Loss
	// Group is the processes that train the model together. Rank 0 measures for all. Nil is this process
	// alone.
	Group *group.Group
}

// Threads is a number of threads chosen by measured times.
type Threads struct {
	N      int     // for pipe.Config.Threads
	Tried  int     // the number beside 1 that was fastest, or N where that is more than 1
	Faster float64 // how many times as fast Tried is as one thread: the median of the rounds
}

// ThreadsByTime finds how many threads of each device a model trains fastest with: 1, 2, 4 and so on, or
// ThreadsConfig.Most. Layers run forward and backward on a micro-batch of the first rows of set, with each
// number in turns. A number counts as faster than a smaller one if it is by a tenth in all rounds but one. It
// takes some seconds at most, unless single layers take as long. Measurements vary, and so may the
// number, and with it the last bits of results: who resumes a run gives it the number that it had
// (Checkpoint.Threads).
//
// In a group all members call it.
func ThreadsByTime(ctx context.Context, model *nn.Sequential, set data.Dataset,
	config ThreadsConfig) (Threads, error) {
	if set.Len() == 0 {
		return Threads{}, errors.New("train: ThreadsByTime: the data set is empty; want a sample to measure with")
	}
	if err := cmp.Or(arg.Between("train", "Most", config.Most, 1, torch.MaxThreads),
		arg.AtLeast("train", "Batch", config.Batch, 1),
		arg.AtLeast("train", "Chunks", config.Chunks, 0)); err != nil {
		return Threads{}, err
	}
	if config.Most == 1 {
		return Threads{N: 1, Tried: 1, Faster: 1}, nil
	}
	batch := min(config.Batch, set.Len())
	chunks := min(max(config.Chunks, 1), batch)
	sample, err := firstRows(set, (batch+chunks-1)/chunks)
	if err != nil {
		return Threads{}, err
	}
	return group.FromFirst(ctx, config.Group, "train: threads", func() (Threads, error) {
		t, err := timeThreads(ctx, model, sample, config)
		if err != nil {
			return Threads{}, err
		}
		return chooseThreads(t), nil
	})
}

// timeThreads measures the model on a micro-batch.
func timeThreads(ctx context.Context, model *nn.Sequential, sample data.Batch,
	config ThreadsConfig) (profile.ThreadTimes, error) {
	counts := []int{config.Most}
	for n := 1; n < config.Most; n *= 2 {
		counts = append(counts, n)
	}
	slices.Sort(counts)
	return onSample("timing threads", sample, config.Profile, config.Loss,
		func(measure profile.Config, input *torch.Tensor) (profile.ThreadTimes, error) {
			return profile.Threads(ctx, model, measure, counts, input)
		})
}

// clearly is how many times as fast a larger number of threads has to be.
const clearly = 1.1

func chooseThreads(t profile.ThreadTimes) (out Threads) {
	best := 0
	median := func(i int) float64 { r := t.Faster(i, 0); return r[len(r)/2] }
	fastest := 1
	for i := 1; i < len(t.Threads); i++ {
		if r := t.Faster(i, best); r[min(1, len(r)-1)] >= clearly {
			best = i
		}
		if median(i) > median(fastest) {
			fastest = i
		}
	}
	if best > 0 {
		fastest = best
	}
	return Threads{N: t.Threads[best], Tried: t.Threads[fastest], Faster: median(fastest)}
}
