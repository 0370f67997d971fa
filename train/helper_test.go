package train_test

import (
	"cmp"
	"context"
	"slices"
	"testing"

	"penstock.example/data"
	"penstock.example/group"
	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/torch"
	"penstock.example/train"
)

// samples is the size of the training set and batch that of a batch: five batches make an epoch,
// the last one short but with two rows for each micro-batch.
const samples, batch = 38, 8

// network has what a resumed run could get wrong: running statistics, dropout, parameters on every
// stage of the cuts below.
func network() *nn.Sequential {
	return nn.NewSequential(
		nn.NewFlatten(1, -1), nn.NewLinear(16, 12), nn.NewBatchNorm1d(12, nn.BatchNormConfig{}), nn.NewReLU(),
		nn.NewDropout(0.2), nn.NewLinear(12, 10), nn.NewReLU(), nn.NewLinear(10, 3),
	)
}

func dataset(t testing.TB) (training, testing data.Dataset) {
	t.Helper()
	training, testing, err := data.Synthetic{Seed: 5, Train: samples, Test: 20, Classes: 3, Height: 4,
		Width: 4}.Open()
	must.Do(t, err)
	return training, testing
}

// loader reads the training set in batches, from a position or from the beginning. It is closed
// when the test ends.
func loader(t testing.TB, start ...data.Position) *data.Loader {
	t.Helper()
	at := data.Position{}
	if len(start) > 0 {
		at = start[0]
	}
	return loaderOf(t, batch, at)
}

// loaderOf is loader with batches of so many rows.
func loaderOf(t testing.TB, rows int, start data.Position, dropLast ...bool) *data.Loader {
	t.Helper()
	training, _ := dataset(t)
	l := must.Get(data.NewLoader(training,
		data.LoaderConfig{BatchSize: rows, Seed: 7, Shuffle: true, Prefetch: 2, Start: start,
			DropLast: slices.Contains(dropLast, true)}))(t)
	t.Cleanup(l.Close)
	return l
}

// setup says how a run differs from the usual one.
type setup struct {
	balance   []int          // nil is one stage
	devices   []torch.Device // nil is those of CPUs
	optimizer string
	config    optim.Config
	start     train.Progress
	group     *group.Group
	replicas  int
	dropLast  bool

	batch, chunks, accumulate int // 0 is the usual batch in 3 micro-batches, one an update
}

// rig is a run's machinery.
type rig struct {
	*train.Loop
	model *nn.Sequential
}

// newRig makes a loop over the network. All is freed when the test ends, or by close.
func newRig(t testing.TB, s setup) (*rig, func()) {
	t.Helper()
	model := network()
	p := must.Get(pipe.New(model, pipe.Config{Balance: s.balance, Devices: s.devices,
		Chunks: cmp.Or(s.chunks, 3), Seed: 7, Group: s.group, Replicas: s.replicas}))(t)
	if s.optimizer == "" {
		s.optimizer, s.config = "sgd", optim.Config{LR: 0.05, Momentum: 0.9}
	}
	o := must.Get(optim.New(s.optimizer, s.config))(t)
	loader := loaderOf(t, cmp.Or(s.batch, batch), s.start.Position, s.dropLast)
	closed := false
	closer := func() {
		if closed {
			return
		}
		closed = true
		loader.Close()
		o.Close()
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		nn.Free(model)
	}
	t.Cleanup(closer)
	return &rig{&train.Loop{Pipe: p, Optimizer: o, Loss: nn.CrossEntropy(), Loader: loader,
		Step: s.start.Step, Accumulate: s.accumulate}, model}, closer
}

// run runs a loop to its end and fails the test on an error.
func (s *rig) run(t testing.TB) train.Result {
	t.Helper()
	r := must.Get(s.Run(context.Background()))(t)
	return r
}

func live() [3]int64 {
	return [3]int64{torch.CPU(0).Memory().Live, torch.CPU(1).Memory().Live, torch.CPU(2).Memory().Live}
}

// check is torchtest.Check with a name that says what for.
func check(t testing.TB) { t.Helper(); torchtest.Check(t) }

// sumOf is the hash of a model that is whole in this process.
func sumOf(model nn.Module) string {
	sum, err := train.ParamsSHA256(nil, model)
	if err != nil {
		panic(err)
	}
	return sum
}

func testDevices(n int) (list []torch.Device) {
	for i := range n {
		list = append(list, torchtest.Device(i))
	}
	return list
}
