package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"penstock/data"
	"penstock/models"
	"penstock/optim"
	"penstock/pipe"
	"penstock/torch"
	"penstock/train"
)

// plan is what a command line asks for, as far as it can be judged without looking at the disk.
type plan struct {
	trainFlags
	given func(flag string) bool

	info    models.Info
	balance []int // nil: to be found by timing the layers
	devices []torch.Device
	options models.Options    // what --set asks for
	policy  []pipe.Checkpoint // by stage
	limit   int64             // bytes; 0 is none
	update  optim.Config
}

// plan checks the flags. Its errors are usage errors of one line that name the flag, the value and what to give instead.
// given says whether a flag was on the command line.
func (f trainFlags) plan(given func(flag string) bool) (plan, error) {
	p := plan{trainFlags: f, given: given}
	for _, check := range []func() error{p.checkNames, p.checkNumbers, p.checkCut, p.checkDevices, p.checkMemory, p.checkOptimizer, p.checkFiles} {
		if err := check(); err != nil {
			return plan{}, err
		}
	}
	return p, nil
}

func (p *plan) checkNames() (err error) {
	if p.modelName == "" {
		return badUsage("--model is needed: one of %s", strings.Join(models.Names(), ", "))
	}
	if p.dataName == "" {
		return badUsage("--data is needed: one of %s", strings.Join(data.Names(), ", "))
	}
	if p.info, err = models.Describe(p.modelName); err != nil {
		return badUsage("--model %q: want one of %s", p.modelName, strings.Join(models.Names(), ", "))
	}
	if !slices.Contains(data.Names(), p.dataName) {
		return badUsage("--data %q: want one of %s", p.dataName, strings.Join(data.Names(), ", "))
	}
	if (p.info.Kind == models.Text) != (p.dataName == "text") {
		return badUsage("--model %s reads %ss, which --data %s does not have; want another of the two", p.modelName, p.info.Kind, p.dataName)
	}
	if p.info.Kind == models.Segmentation {
		return badUsage("--model %s answers for each pixel, and no --data has such targets; want a model that answers for an image", p.modelName)
	}
	if p.given("window") && p.dataName != "text" {
		return badUsage("--window %d: it is for --data text, and %s has samples of their own size", p.window, p.dataName)
	}
	if err := models.Set(p.modelName, &p.options, p.settings); err != nil {
		return badUsage("--set %s", message(err))
	}
	if !slices.Contains(optim.Names(), p.optimizerName) {
		return badUsage("--optimizer %q: want one of %s", p.optimizerName, strings.Join(optim.Names(), ", "))
	}
	if !slices.Contains(optim.ScheduleNames(), p.scheduleName) {
		return badUsage("--schedule %q: want one of %s", p.scheduleName, strings.Join(optim.ScheduleNames(), ", "))
	}
	return checkFormat(p.format)
}

func (p *plan) checkNumbers() error {
	ifGiven := func(flag string) (least int64) { // 0 stands for a flag that was left out
		if p.given(flag) {
			return 1
		}
		return 0
	}
	for _, n := range []struct {
		flag         string
		value, least int64
	}{
		{"batch", int64(p.batch), 1}, {"chunks", int64(p.chunks), 1}, {"threads", int64(p.threads), 1}, {"window", int64(p.window), 1},
		{"steps", p.steps, ifGiven("steps")}, {"epochs", int64(p.epochs), ifGiven("epochs")}, {"save-every", p.saveEvery, ifGiven("save-every")},
		{"warmup", int64(p.warmup), 0}, {"schedule-steps", int64(p.scheduleSteps), ifGiven("schedule-steps")},
	} {
		if n.value < n.least {
			return badUsage("--%s %d: want at least %d", n.flag, n.value, n.least)
		}
		if n.value > math.MaxInt32 {
			return badUsage("--%s %d: want at most %d", n.flag, n.value, math.MaxInt32)
		}
	}
	for _, n := range []struct {
		flag  string
		value float64
	}{{"lr", p.lr}, {"momentum", p.momentum}, {"weight-decay", p.weightDecay}, {"clip-norm", p.clipNorm}} {
		if !(n.value >= 0) || math.IsInf(n.value, 0) {
			return badUsage("--%s %v: want a finite number that is not negative", n.flag, n.value)
		}
	}
	if p.threads > pipe.MaxThreads {
		return badUsage("--threads %d: want at most %d; with more a process stops rather than being slow", p.threads, pipe.MaxThreads)
	}
	if p.momentum >= 1 {
		return badUsage("--momentum %v: want less than 1, or what was is never forgotten", p.momentum)
	}
	if p.scheduleName == "constant" && p.scheduleSteps > 0 {
		return badUsage("--schedule-steps %d: a constant schedule has no end; want --schedule cosine or step with it", p.scheduleSteps)
	}
	if p.given("lr") && p.lr == 0 {
		return badUsage("--lr 0: want a number above 0")
	}
	if p.epochs == 0 && p.steps == 0 {
		p.epochs = 1
	}
	return nil
}

// checkCut checks stages, balance and devices against each other and against the model.
func (p *plan) checkCut() error {
	if p.stages < 1 {
		return badUsage("--stages %d: want at least 1", p.stages)
	}
	model, err := models.New(p.modelName, p.options)
	if err != nil {
		return badUsage("--set %s: %s", strings.Join(p.settings, ","), message(err))
	}
	layers := len(model.Layers())
	if p.given("balance") {
		if p.balance, err = parseBalance(p.rawBalance, layers); err != nil {
			return badUsage("--balance %s: %w of %s; leave --balance out to have layers timed and cut evenly", p.rawBalance, err, p.modelName)
		}
		if p.given("stages") && len(p.balance) != p.stages {
			return badUsage("--stages %d and --balance %s, which has %d: want as many, or one of the two left out", p.stages, p.rawBalance, len(p.balance))
		}
		p.stages = len(p.balance)
	}
	if p.stages > layers {
		return badUsage("--stages %d: %s has %d layers; want at most as many stages", p.stages, p.modelName, layers)
	}
	if p.stages == 1 {
		p.balance = []int{layers}
	}
	if p.policy, err = pipe.Checkpoint(p.policyName).Stages(p.stages); err != nil {
		return badUsage("--checkpoint %s: %s", p.policyName, message(err))
	}
	return nil
}

func (p *plan) checkDevices() error {
	if !p.given("devices") {
		if p.stages > torch.MaxCPU {
			return badUsage("--stages %d: there are %d CPU devices; want fewer stages, or --devices that name one more than once", p.stages, torch.MaxCPU)
		}
		for i := range p.stages {
			p.devices = append(p.devices, torch.CPU(i))
		}
		return nil
	}
	for _, name := range strings.Split(p.rawDevices, ",") {
		d, err := torch.ParseDevice(name)
		if err != nil {
			return badUsage("--devices %s: %s", p.rawDevices, message(err))
		}
		if !d.Available() {
			return badUsage("--devices %s: libtorch %s here cannot use %v; want cpu:0, cpu:1, ...", p.rawDevices, torch.Version(), d)
		}
		p.devices = append(p.devices, d)
	}
	if len(p.devices) < p.stages {
		return badUsage("--devices %s: %d for %d stages; want one for each stage, or fewer stages", p.rawDevices, len(p.devices), p.stages)
	}
	p.devices = p.devices[:p.stages]
	if slices.Contains(p.policy, pipe.Optimal) {
		for i, d := range p.devices {
			if slices.Contains(p.devices[:i], d) {
				return badUsage("--devices %s: --checkpoint optimal plans the memory of a device for one stage; want each stage on its own", p.rawDevices)
			}
			if d.Kind != torch.KindCPU {
				return badUsage("--devices %s: the memory of %v is not counted, and --checkpoint optimal plans it; want CPU devices, or another policy", p.rawDevices, d)
			}
		}
	}
	return nil
}

// parseBalance reads "5,6" for a model of so many layers.
func parseBalance(s string, layers int) ([]int, error) {
	var balance []int
	sum := 0
	for _, word := range strings.Split(s, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(word))
		if errors.Is(err, strconv.ErrRange) {
			return nil, fmt.Errorf("%s is out of range; want numbers like 5,6 that add up to the %d layers", word, layers)
		}
		if err != nil {
			return nil, fmt.Errorf("%q is no number; want numbers like 5,6 that add up to the %d layers", word, layers)
		}
		if n < 1 {
			return nil, fmt.Errorf("a stage of %d layers; want at least 1 in each, adding up to the %d layers", n, layers)
		}
		balance = append(balance, n)
		if sum += n; sum > layers {
			sum = layers + 1 // and no overflow, however many numbers follow
		}
	}
	switch {
	case sum < layers:
		return nil, fmt.Errorf("it adds up to %d; want the %d layers", sum, layers)
	case sum > layers:
		return nil, fmt.Errorf("it adds up to more than the %d layers", layers)
	}
	return balance, nil
}

func (p *plan) checkMemory() (err error) {
	if !p.given("memory-limit") {
		return nil
	}
	if p.limit, err = parseBytes(p.rawLimit); err != nil {
		return badUsage("--memory-limit %w", err)
	}
	if p.limit < 1 {
		return badUsage("--memory-limit %s: want at least one byte, or the flag left out for no limit", p.rawLimit)
	}
	for _, d := range p.devices {
		if d.Kind != torch.KindCPU {
			return badUsage("--memory-limit %s: the memory of %v is not counted; want CPU devices, or no limit", p.rawLimit, d)
		}
	}
	return nil
}

func (p *plan) checkOptimizer() error {
	if !p.given("lr") {
		switch p.optimizerName {
		case "sgd":
			p.lr = 0.1
		case "rmsprop":
			p.lr = 0.01
		default:
			p.lr = 0.001
		}
	}
	if !p.given("momentum") && p.optimizerName == "sgd" {
		p.momentum = 0.9
	}
	p.update = optim.Config{LR: p.lr, Momentum: p.momentum, Nesterov: p.nesterov, WeightDecay: p.weightDecay}
	o, err := optim.New(p.optimizerName, p.update)
	if err != nil {
		return badUsage("--optimizer %s: %s", p.optimizerName, message(err))
	}
	o.Close()
	return nil
}

func (p *plan) checkFiles() error {
	for flag, path := range map[string]string{"out": p.out, "trace": p.traceFile} {
		if p.given(flag) && path == "" {
			return badUsage("--%s is empty; want a path, or the flag left out", flag)
		}
	}
	if p.given("data-dir") && p.dataDir == "" {
		return badUsage("--data-dir is empty; want a path, or the flag left out")
	}
	switch p.dataName {
	case "synthetic":
		if p.dataDir != "" {
			return badUsage("--data-dir %s: it is for data with files, and synthetic has none", p.dataDir)
		}
	case "fashion-mnist": // has a usual place
	default:
		if p.dataDir == "" {
			return badUsage("--data %s needs --data-dir PATH, where its files are", p.dataName)
		}
	}
	if p.resume && p.out == "" {
		return badUsage("--resume needs --out DIR, the directory to go on from")
	}
	if p.saveEvery > 0 && p.out == "" {
		return badUsage("--save-every needs --out DIR, the directory to save in")
	}
	return nil
}

// scheduled makes the learning rate's schedule for a run of so many steps in all, and what the recipe says of it.
func (p *plan) scheduled(total int64) (optim.Schedule, train.Choice, error) {
	config := optim.ScheduleConfig{LR: p.lr, WarmupSteps: p.warmup}
	settings := map[string]any{"warmup": p.warmup}
	if p.scheduleName != "constant" { // which is the same however long it lasts
		config.TotalSteps = int(total)
		if p.scheduleSteps > 0 {
			config.TotalSteps = p.scheduleSteps
		}
		if config.TotalSteps <= p.warmup {
			return nil, train.Choice{}, badUsage("--warmup %d: the %s schedule has only %d steps; want a shorter warm-up, or more --steps, --epochs or --schedule-steps",
				p.warmup, p.scheduleName, config.TotalSteps)
		}
		settings["schedule-steps"] = config.TotalSteps
	}
	s, err := optim.NewSchedule(p.scheduleName, config)
	if err != nil {
		return nil, train.Choice{}, badUsage("--schedule %s: %s", p.scheduleName, message(err))
	}
	return s, train.Choice{Name: p.scheduleName, Settings: settings}, nil
}
