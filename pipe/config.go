package pipe

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"penstock.example/group"
	"penstock.example/internal/arg"
	"penstock.example/internal/system"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/plan"
	"penstock.example/profile"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// Config says how a model is cut and run. With more than one stage it needs a Balance.
type Config struct {
	Balance []int // the number of flattened layers in each stage; nil is one stage
	// Devices has the device of each stage, by its name in the stage's process (Ranks). Stages on
	// one device share a worker. Nil is cpu:0, cpu:1, ..., counted through all replicas.
	Devices    []torch.Device
	Chunks     int        // micro-batches, at most one for each row; 0 is 1
	Checkpoint Checkpoint // the policy of all stages, or a list with one for each; "" is ExceptLast
	// Budget is for the policy Optimal: the most live bytes of each stage's device, or one number
	// for all. It limits the devices while the pipe is open. Nil or 0 is the device's own limit
	// (torch.Device.SetLimit). Without a limit nothing is recomputed.
	Budget    []int64
	Optimizer optim.Optimizer // the policy Optimal leaves memory for its state; nil is none
	// Plan is an earlier plan to run. It sets Balance, Checkpoint, Budget and Schedule, and Devices
	// if they are nil. A batch with fewer micro-batches runs its part of the plan. Nil lets the
	// pipe plan.
	Plan *plan.Plan
	// Profile is for the policy Optimal: an earlier measurement of the model with the same loss and
	// as many rows in a micro-batch. Nil is none.
	Profile *profile.Profile
	// Schedule makes the programs that the workers run. Nil is schedule.GPipe. Forward and Backward
	// need a schedule whose workers end their forwards before their first backward.
	Schedule schedule.Generator
	// DeferredBatchNorm updates running statistics once for each mini-batch, from all its rows.
	DeferredBatchNorm bool
	Autocast          torch.Autocast // of forwards and recomputations; see torch.Options
	Threads           int            // intra-op threads of each worker, on which sums depend; 0 is 1
	Cores             [][]int        // by distinct device: the cores that its worker is bound to
	Seed              uint64         // the root of initial weights and of all randomness
	// Group has the processes of the stages. The caller closes it after the pipe. Nil is this process.
	Group *group.Group
	// Ranks is the rank of each stage's process, counted from the first member of the replica.
	// Every process needs a stage. Nil is DefaultRanks.
	Ranks []int
	// Replicas is the number of pipelines in Group, each for its own rows. A step sums their
	// gradients. Replicas in one process need models and devices of their own. 0 is 1.
	Replicas int
	Record   bool // Step and Infer return a timeline

	policies []Checkpoint // by stage
	lanes    []int        // by stage, in tests: each lane of a device has its own worker
}

// ConfigError is a setting of a Config that New and Open refuse.
type ConfigError = arg.ConfigError

// Sentinel errors of a Pipe.
var (
	ErrClosed    = errors.New("pipe: closed")
	ErrNotPlaced = errors.New("pipe: the model was not placed yet; call Place first")
	ErrNested    = errors.New("pipe: used from within itself") // by a layer, a loss or an update; see Pipe
	// ErrAccumulating refuses an update while each replica has its own gradients.
	ErrAccumulating = errors.New("pipe: replicas have gradients to sum; first Step without Accumulate")
)

// Check returns a *ConfigError if the configuration does not fit the model. It allocates nothing.
func (cfg Config) Check(model *nn.Sequential) error {
	_, err := cfg.resolved(model.Layers())
	return err
}

func (cfg Config) resolved(layers []nn.NamedLayer) (Config, error) {
	if len(layers) == 0 {
		return cfg, errors.New("pipe: the model has no layers; Add some before it is cut")
	}
	err := cfg.applyPlan()
	if cfg.Balance == nil {
		cfg.Balance = []int{len(layers)}
	}
	for _, check := range []func() error{
		func() error { return arg.Balance("pipe", cfg.Balance, len(layers)) },
		cfg.checkProcesses,
		func() error { return arg.AtLeast("pipe", "Chunks", cfg.Chunks, 0) },
		func() error { return arg.Between("pipe", "Threads", cfg.Threads, 0, system.MaxThreads) },
		func() (err error) { cfg.policies, err = cfg.Checkpoint.Stages(len(cfg.Balance)); return err },
		cfg.checkBudget,
		cfg.checkSchedule,
	} {
		if err == nil {
			err = check()
		}
	}
	return cfg, err
}

// checkSchedule sets defaults and tries the schedule. A plan must have the workers of the stages.
func (cfg *Config) checkSchedule() error {
	cfg.Checkpoint = Checkpoint(cfg.Checkpoint.String())
	cfg.Chunks, cfg.Threads = max(cfg.Chunks, 1), max(cfg.Threads, 1)
	worker, _ := cfg.workers()
	if cfg.Schedule == nil {
		cfg.Schedule = schedule.GPipe
	} else if p, err := cfg.Schedule.Make(schedule.Config{Stages: len(worker), MicroBatches: cfg.Chunks,
		Worker: worker, Recompute: func(stage, microBatch int) bool {
			return stage < len(worker) &&
				(cfg.policies[stage] == Optimal || plan.Policy(cfg.policies[stage]).Recomputes(microBatch))
		}}); err != nil || p.Reduces() {
		problem, remedy := reducesProblem, reducesRemedy
		if err != nil {
			problem, remedy = err.Error(), "want a schedule for these, or other stages, devices or chunks"
		}
		return refuse("Schedule", unquoted(fmt.Sprintf("for %d stages on workers %v and %d micro-batches",
			len(worker), worker, cfg.Chunks)), problem, remedy)
	}
	if cfg.Plan != nil {
		for w, actions := range cfg.Plan.Program.Workers {
			if slices.ContainsFunc(actions, func(a schedule.Action) bool { return worker[a.Stage] != w }) {
				return cfg.refusePlan(fmt.Sprintf("its worker %d has stages of other devices", w),
					"want one worker for each device, numbered in the order of stages")
			}
		}
	}
	if cfg.Replicas > 1 {
		cfg.Schedule = withReductions(cfg.Schedule)
	}
	return nil
}

const (
	reducesProblem = "its program sums gradients over replicas, and a pipe is one replica"
	reducesRemedy  = "want one without reductions (schedule.Program.WithoutReduce)"
)

// unquoted is a value that a ConfigError shows without quotes.
type unquoted string

func refuse(field string, value any, problem, remedy string) error {
	return &ConfigError{Of: "pipe", Field: field, Value: value, Problem: problem, Remedy: remedy}
}

// checkProcesses gives each stage its device and its rank in the group.
func (cfg *Config) checkProcesses() error {
	n, members := max(cfg.Replicas, 1), 1
	if cfg.Group != nil {
		members = cfg.Group.Size()
	}
	stages, size := len(cfg.Balance), members/n
	switch {
	case cfg.Group == nil && n > 1:
		return refuse("Replicas", cfg.Replicas, "there is no Group", "want one of group.Join or group.Local")
	case cfg.Replicas < 0 || members%n != 0:
		return refuse("Replicas", cfg.Replicas, fmt.Sprintf("the group has %d members", members),
			"want the same number for each replica")
	case cfg.Group == nil && cfg.Ranks != nil:
		return refuse("Ranks", cfg.Ranks, "there is no Group", "want both, or neither")
	}
	if cfg.Devices == nil {
		_, replica := cfg.replicas()
		for i := range stages {
			cfg.Devices = append(cfg.Devices, torch.CPU(replica*stages+i))
		}
	}
	if len(cfg.Devices) < stages {
		return refuse("Devices", cfg.Devices, fmt.Sprintf("%d for %d stages", len(cfg.Devices), stages),
			"want one for each stage; the same one may serve several")
	}
	cfg.Devices = cfg.Devices[:stages]
	if cfg.Group != nil {
		if cfg.Ranks == nil {
			cfg.Ranks = DefaultRanks(cfg.Devices, size)
		}
		distinct := slices.Compact(slices.Sorted(slices.Values(cfg.Ranks)))
		if len(cfg.Ranks) != stages || len(distinct) != size || distinct[0] != 0 ||
			distinct[size-1] != size-1 {
			return refuse("Ranks", cfg.Ranks,
				fmt.Sprintf("a replica has %d stages and %d processes", stages, size),
				fmt.Sprintf("want a rank from 0 to %d for each stage, and a stage for each rank", size-1))
		}
	}
	for i, d := range cfg.Devices {
		if err := d.Usable(); err != nil && cfg.isHere(i) {
			return refuse("Devices", cfg.Devices, err.Error(), "want cpu:0, cpu:1, ...")
		}
	}
	return nil
}

// Checkpoint is a policy of recomputation, or a list with a policy for each stage, such as
// "always,never". A stage keeps only the input of a micro-batch that is recomputed before backward.
type Checkpoint string

// Optimal keeps or recomputes each layer of each micro-batch so that a step is shortest within
// Config.Budget. The first step with batches of a new size measures the layers and plans.
const (
	ExceptLast = Checkpoint(plan.ExceptLast) // all but micro-batch 0, the first to go backward
	Never      = Checkpoint(plan.Never)
	Always     = Checkpoint(plan.Always)
	Optimal    = Checkpoint(plan.Optimal)
)

// PerStage makes a list with a policy for each stage.
func PerStage(policies ...Checkpoint) Checkpoint {
	words := make([]string, len(policies))
	for i, k := range policies {
		words[i] = k.String()
	}
	return Checkpoint(strings.Join(words, ","))
}

func (k Checkpoint) String() string { return cmp.Or(string(k), string(ExceptLast)) }

// Stages lists the policies of stages 0 to stages-1. It fails with a *ConfigError.
func (k Checkpoint) Stages(stages int) ([]Checkpoint, error) {
	var out []Checkpoint
	for _, word := range strings.Split(k.String(), ",") {
		if !slices.Contains(plan.Policies, plan.Policy(word)) {
			return nil, refuse("Checkpoint", k.String(), fmt.Sprintf("%q is no policy", word),
				arg.Meant(word, []string{string(Never), string(ExceptLast), string(Always), string(Optimal)})+
					"want never, except_last, always or optimal, or a list with one for each stage")
		}
		out = append(out, Checkpoint(word))
	}
	switch len(out) {
	case 1:
		return slices.Repeat(out, max(stages, 0)), nil
	case stages:
		return out, nil
	}
	return nil, refuse("Checkpoint", k.String(), fmt.Sprintf("%d policies for %d stages", len(out), stages),
		oneForEach)
}

const oneForEach = "want one for each stage, or one for all"

func (cfg *Config) checkBudget() error {
	if !slices.Contains(cfg.policies, Optimal) {
		if cfg.Budget != nil {
			return refuse("Budget", cfg.Budget, "the policy optimal alone has a budget",
				"want this policy, or limits of the devices (torch.Device.SetLimit)")
		}
		return nil
	}
	switch n := len(cfg.Balance); len(cfg.Budget) {
	case 0:
		cfg.Budget = make([]int64, n)
	case n:
	case 1:
		cfg.Budget = slices.Repeat(cfg.Budget, n)
	default:
		return refuse("Budget", cfg.Budget, fmt.Sprintf("%d for %d stages", len(cfg.Budget), n), oneForEach)
	}
	if i := slices.IndexFunc(cfg.Budget, func(n int64) bool { return n < 0 }); i >= 0 {
		return refuse("Budget", cfg.Budget, fmt.Sprintf("stage %d has %d bytes", i, cfg.Budget[i]),
			"want at least 1, or 0 for none")
	}
	worker, _ := cfg.workers()
	for i, d := range cfg.Devices {
		first := slices.Index(worker, worker[i])
		if (cfg.policies[first] == Optimal) != (cfg.policies[i] == Optimal) {
			return refuse("Checkpoint", cfg.Checkpoint.String(),
				fmt.Sprintf("stages %d and %d share %v, whose memory is planned as one", first, i, d),
				"want optimal for all stages of a device, or for none")
		}
	}
	return nil
}

func (cfg *Config) refusePlan(problem, remedy string) error {
	return refuse("Plan", unquoted(fmt.Sprintf("for %d stages and %d micro-batches", len(cfg.Plan.Stages),
		cfg.Plan.MicroBatches())), problem, remedy)
}

func (cfg *Config) applyPlan() error {
	plan := cfg.Plan
	if plan == nil {
		return nil
	}
	if err := plan.Check(); err != nil {
		return cfg.refusePlan(err.Error(), "want one that plan.Solve or plan.Parse returned, unchanged")
	}
	switch n := plan.MicroBatches(); {
	case plan.Program.Reduces() && cfg.Replicas <= 1:
		return cfg.refusePlan(reducesProblem, reducesRemedy)
	case !plan.Program.Reduces() && cfg.Replicas > 1:
		return cfg.refusePlan("it has no sums over replicas", "want the plan of a pipe with Replicas")
	case cfg.Balance != nil || cfg.Checkpoint != "" || cfg.Budget != nil || cfg.Schedule != nil:
		return cfg.refusePlan("the plan has its own", "leave Balance, Checkpoint, Budget and Schedule out")
	case cfg.Chunks > n:
		return refuse("Chunks", cfg.Chunks, "the plan has fewer micro-batches",
			fmt.Sprintf("want at most %d", n))
	case cfg.Chunks == 0:
		cfg.Chunks = n
	}
	var policies []Checkpoint
	var devices []torch.Device
	var ranks []int
	for i, s := range plan.Stages {
		device := plan.Devices[s.Device]
		d, rank, err := parseDevice(device.Name)
		if err != nil && cfg.Devices == nil {
			return cfg.refusePlan(fmt.Sprintf("stage %d: %v", i, err), "want one such as cpu:0")
		}
		cfg.Balance, cfg.Budget = append(cfg.Balance, s.Layers), append(cfg.Budget, device.Limit)
		policies, devices = append(policies, Checkpoint(s.Policy)), append(devices, d)
		if rank >= 0 {
			ranks = append(ranks, rank)
		}
	}
	if cfg.Devices == nil {
		cfg.Devices = devices
		if cfg.Ranks == nil && len(ranks) == len(devices) {
			cfg.Ranks = ranks
		}
	}
	if cfg.Checkpoint = PerStage(policies...); !slices.Contains(policies, Optimal) {
		cfg.Budget = nil
	}
	return nil
}
