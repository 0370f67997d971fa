package examples

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"penstock.example/autoremat"
	"penstock.example/data"
	"penstock.example/group"
	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/profile"
	"penstock.example/schedule"
	"penstock.example/torch"
	"penstock.example/trace"
	"penstock.example/train"
)

// named is the configuration of an optimizer, a data set or a model with a name.
type named struct {
	name   string
	config any
}

// Each refused setting is a *ConfigError with the field, the value and the remedy, which its text states.
func TestConfigurationErrorsNameFieldValueAndRemedy(t *testing.T) {
	nan := math.NaN()
	two := []int{1, 2}
	for _, row := range []struct {
		field  string
		config any
	}{
		{"Balance", pipe.Config{Balance: []int{1, 0, 2}}},
		{"Balance", pipe.Config{Balance: []int{2}}},
		{"Balance", pipe.Config{Balance: []int{2, math.MaxInt, 2}}},
		{"Devices", pipe.Config{Balance: two, Devices: []torch.Device{torch.CPU(0)}}},
		{"Devices", pipe.Config{Devices: []torch.Device{torch.CPU(-1)}}},
		{"Group", pipe.Config{Balance: []int{3}, Group: group.Local(2)[1]}},
		{"Replicas", pipe.Config{Replicas: 2}},
		{"Replicas", pipe.Config{Replicas: 2, Group: group.Local(3)[1]}},
		{"Ranks", pipe.Config{Ranks: []int{0}}},
		{"Ranks", pipe.Config{Balance: two, Group: group.Local(2)[0], Ranks: []int{0, 0}}},
		{"Schedule", pipe.Config{Chunks: 2, Schedule: schedule.Fixed(&schedule.Program{})}},
		{"Chunks", pipe.Config{Chunks: -3}},
		{"Checkpoint", pipe.Config{Checkpoint: "sometimes"}},
		{"Checkpoint", pipe.Config{Balance: two, Checkpoint: "never,always,never"}},
		{"Checkpoint", pipe.Config{Balance: two, Devices: make([]torch.Device, 2), Checkpoint: "optimal,never"}},
		{"Budget", pipe.Config{Budget: []int64{1}}},
		{"Budget", pipe.Config{Checkpoint: pipe.Optimal, Budget: []int64{1, 2}}},
		{"Threads", pipe.Config{Threads: 257}},
		{"Cores", pipe.Config{Cores: [][]int{{100000}}}},
		{"ClipNorm", train.Loop{ClipNorm: nan}},
		{"Scaler", train.Loop{Scaler: &optim.Scaler{Scale: 3}}},
		{"Steps", train.Loop{Steps: -1}},
		{"Accumulate", train.Loop{Accumulate: -1}},
		{"Patience", train.Validation{Patience: -1}},
		{"Batch", train.EvaluateConfig{}},
		{"Device", profile.Config{Device: torch.CPU(torch.MaxCPU)}},
		{"Threads", profile.Config{Threads: 257}},
		{"Repeats", profile.Config{Repeats: -1}},
		{"Limit", autoremat.Config{Limit: -1}},
		{"Threads", torch.Options{Threads: -1}},
		{"Workers", trace.Options{Workers: []string{"a"}}},
		{"Size", group.Config{}},
		{"Rank", group.Config{Size: 2, Rank: 2}},
		{"Address", group.Config{Size: 2, Address: "here"}},
		{"LR", named{"sgd", optim.Config{LR: nan}}},
		{"Momentum", named{"adam", optim.Config{Momentum: 0.9}}},
		{"Nesterov", named{"sgd", optim.Config{Nesterov: true}}},
		{"Betas[0]", named{"adam", optim.Config{Betas: [2]float64{1, 0}}}},
		{"Groups", named{"sgd", optim.Config{Groups: []optim.Group{{Params: "*.bias", Scale: -1}}}}},
		{"TotalSteps", named{"cosine", optim.ScheduleConfig{LR: 1, WarmupSteps: 3, TotalSteps: 3}}},
		{"MinLR", named{"cosine", optim.ScheduleConfig{LR: 1, MinLR: 2}}},
		{"BatchSize", data.LoaderConfig{BatchSize: 5000, DropLast: true}},
		{"Start", data.LoaderConfig{BatchSize: 512, Start: data.Position{Batch: 3}}},
		{"Channels", named{"images", data.Options{Channels: 2}}},
		{"Holdout", named{"text", data.Options{Holdout: 1}}},
		{"TokenBytes", named{"tokens", data.Options{TokenBytes: 3}}},
		{"Task", data.Synthetic{Task: "dreams"}},
		{"Size", named{"unet", models.Options{Size: 16}}},
		{"Width", named{"gpt", models.Options{Width: 9}}},
		{"Dropout", named{"unet", models.Options{Dropout: 1}}},
		{"Context", named{"mlp", models.Options{Context: 5}}},
	} {
		err := use(t, row.config)
		var e *pipe.ConfigError
		if !errors.As(err, &e) {
			t.Errorf("%T.%s: %v is no *ConfigError", row.config, row.field, err)
			continue
		}
		if text := e.Error(); e.Field != row.field || e.Remedy == "" || !strings.Contains(text, ": "+e.Field+" is ") ||
			!strings.Contains(text, fmt.Sprint(e.Value)) || !strings.HasSuffix(text, "; "+e.Remedy) {
			t.Errorf("%T: got %q of %s, want field, value and remedy of %s", row.config, text, e.Field, row.field)
		}
	}
}

// use uses a configuration, which must fail.
func use(t *testing.T, config any) error {
	ctx := context.Background()
	model := nn.NewSequential(nn.NewLinear(4, 4), nn.NewReLU(), nn.NewLinear(4, 2))
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	var name string
	if n, ok := config.(named); ok {
		name, config = n.name, n.config
	}
	set, err := data.FromSlices([]float32{1, 2}, []int64{1}, []int{0, 1})
	if err != nil {
		t.Fatal(err)
	}
	synthetic, _, err := data.Open("synthetic", "", data.Options{})
	if err != nil {
		t.Fatal(err)
	}
	open := func() *pipe.Pipe {
		p, err := pipe.Open(model, pipe.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		return p
	}
	switch config := config.(type) {
	case pipe.Config:
		if err = config.Check(model); err == nil {
			_, err = pipe.Open(model, config)
		}
	case train.Loop:
		sgd, fault := optim.SGD(optim.Config{})
		if fault != nil {
			t.Fatal(fault)
		}
		config.Pipe, config.Optimizer, config.Loss = open(), sgd, nn.MSE()
		_, err = config.Run(ctx)
	case train.Validation:
		config.Set = set
		return use(t, train.Loop{Validation: &config})
	case train.EvaluateConfig:
		_, err = train.Evaluate(ctx, open(), set, config)
	case profile.Config:
		_, err = profile.Measure(ctx, model, config, c.Ones(torch.Float32, 2, 4))
	case autoremat.Config:
		_, err = autoremat.New(model, config)
	case optim.Config:
		_, err = optim.New(name, config)
	case optim.ScheduleConfig:
		_, err = optim.NewSchedule(name, config)
	case data.LoaderConfig:
		_, err = data.NewLoader(synthetic, config)
	case data.Options:
		file := filepath.Join(t.TempDir(), "text")
		if err := os.WriteFile(file, make([]byte, 1000), 0o666); err != nil {
			t.Fatal(err)
		}
		_, _, err = data.Open(name, file, config)
	case data.Synthetic:
		_, _, err = config.Open()
	case group.Config:
		_, err = group.Join(ctx, config)
	case torch.Options:
		err = torch.Try(func() { torch.NewCtx(config) })
	case trace.Options:
		err = trace.Write(io.Discard, schedule.Timeline{Workers: 2}, config)
	case models.Options:
		_, err = models.New(name, config)
	default:
		t.Fatalf("no use for a %T", config)
	}
	return err
}
