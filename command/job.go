package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"penstock.example/data"
	"penstock.example/group"
	"penstock.example/internal/arg"
	"penstock.example/internal/metrics"
	"penstock.example/internal/option"
	"penstock.example/internal/progress"
	"penstock.example/internal/report"
	"penstock.example/internal/system"
	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/plan"
	"penstock.example/profile"
	"penstock.example/torch"
	"penstock.example/train"
)

type job struct {
	runOptions
	group          *group.Group // nil: this process alone
	training, test data.Dataset
	heldOut        data.Dataset // samples for validation; nil is none
	model          *nn.Sequential
	recipe         train.Recipe
	rateSchedule   optim.Schedule
	batches        int               // in an epoch
	last           int64             // last step
	from           *train.Checkpoint // the checkpoint to resume; nil is none
	pipe           *pipe.Pipe
	loop           train.Loop
	show           *reporter
	peaks          peakBytes
	recorded       int64           // recorded step; 0 is none
	writers        metrics.Writers // of rank 0: files and the dashboard
	epoch          int             // of the last step
	listener       net.Listener    // of the dashboard; nil is none
	live           *report.Live    // the dashboard, one of writers; nil until it is served
	page           *report.Run     // of the recorded step; nil until it is recorded
	savedStep      int64           // step of the newest checkpoint in --out; 0 is none
	saveFailed     bool            // saving failed
	endedWithPeers bool            // the other processes end, too, and need not be told
	timingWarned   bool            // of uncertain times
	lighter        [][]int         // cuts to try if the first one does not fit
	unlock         func() error    // releases --out; nil without --out
}

// openJob opens a run. Data, checkpoints and output files are checked before anything takes memory or time.
// The caller closes the job.
func openJob(ctx context.Context, o runOptions, stderr io.Writer) (*job, error) {
	j := &job{runOptions: o}
	_, missing := os.Stat(o.out)
	err := inTurn(ctx, stderr, j.openGroup, j.listen, j.openData, j.planSteps, j.agree, j.openStore,
		j.matchInit, j.openTrace, j.applyAutoPlan)
	if _, live := progress.Width(stderr); live {
		p := progress.New(stderr, "preparing", "")
		defer p.End()
		stderr = p
	}
	if err == nil {
		err = inTurn(ctx, stderr, j.chooseThreads, j.limitMemory, j.findBalance, j.openPipe, j.openLoop,
			j.planMemory, j.placePipe, j.openMetrics, j.serveDashboard)
	}
	if err == nil {
		return j, nil
	}
	err = errors.Join(failGroup(j.group, withRemedy(overLimit(inFlags(j.flags, err)), true)), j.close())
	if missing != nil && j.out != "" {
		os.Remove(j.out) // if nothing is in it
	}
	return nil, err
}

func inTurn(ctx context.Context, stderr io.Writer, list ...func(context.Context, io.Writer) error) error {
	for _, open := range list {
		if err := open(ctx, stderr); err != nil {
			return err
		}
	}
	return nil
}

func (j *job) close() (err error) {
	if j.loop.Loader != nil {
		j.loop.Loader.Close()
	}
	if j.loop.Optimizer != nil {
		j.loop.Optimizer.Close()
	}
	if j.pipe != nil {
		err = j.pipe.Close()
	}
	if j.model != nil {
		nn.Free(j.model)
	}
	for _, d := range j.config.Devices {
		d.SetLimit(0)
	}
	err = errors.Join(err, j.writers.Close())
	if j.listener != nil && j.live == nil {
		err = errors.Join(err, j.listener.Close())
	}
	if j.unlock != nil {
		err = errors.Join(err, j.unlock())
	}
	if j.group != nil {
		err = errors.Join(err, j.group.Close())
	}
	return err
}

// openData reads the data set, makes a model that fits it, and fills the recipe.
func (j *job) openData(context.Context, io.Writer) (err error) {
	sets, err := j.read()
	if err != nil {
		return err
	}
	j.training, j.test = sets.training, sets.test
	info := j.training.Info()
	m, err := j.fitModel(&info)
	if j.model = m.Sequential; err == nil {
		err = freeze(j.model, j.weights.trainOnly)
	}
	if err != nil {
		return err
	}
	fingerprint, err := train.Fingerprint(j.training)
	described := map[string]any{"fingerprint": fingerprint, "samples": j.training.Len()}
	if err == nil {
		j.training, j.heldOut, err = splitValidation(j.training, j.validate, j.config.Seed)
	}
	if err != nil {
		return wrongInput(err)
	}
	if j.heldOut != nil {
		described["validation"] = j.validate
	}
	if j.dataSettings != nil {
		described["chosen"] = parseAssignments(j.dataSettings)
	}
	optimizer := map[string]any{"lr": j.update.LR, "momentum": j.update.Momentum,
		"nesterov": j.update.Nesterov, "weight-decay": j.update.WeightDecay}
	if j.betas != nil {
		optimizer["betas"] = j.betas
	}
	if j.update.Eps != 0 {
		optimizer["eps"] = j.update.Eps
	}
	if len(j.groups) > 0 {
		optimizer["group"] = j.groups
	}
	j.recipe = train.Recipe{
		Model:     train.Choice{Name: j.modelName, Settings: m.chosen},
		Data:      train.Choice{Name: j.dataName, Settings: described},
		Optimizer: train.Choice{Name: j.optimizerName, Settings: optimizer},
		Batch:     j.batch, Chunks: j.config.Chunks, Seed: j.config.Seed, ClipNorm: j.clipNorm,
		Threads: j.config.Threads, Replicas: j.config.Replicas, Autocast: j.config.Autocast,
		DeferredBatchNorm: j.config.DeferredBatchNorm, TrainOnly: j.weights.trainOnly,
		Steps: j.steps, Epochs: j.epochs, SaveEvery: j.saveEvery, DropLast: j.dropLast, Samples: &info,
	}
	if j.accumulate > 1 {
		j.recipe.Accumulate = j.accumulate
	}
	for _, g := range j.update.Groups {
		named := func(p nn.NamedParam) bool { return nn.Match(g.Params, p.Name) }
		if !slices.ContainsFunc(nn.Params(j.model), named) {
			return badUsage("--group %s: no parameter of %s has such a name", g.Params, j.modelName)
		}
	}
	return nil
}

// parseAssignments returns the values in assignments such as "B=6,C=12" by name. The last one counts.
func parseAssignments(lists []string) map[string]any {
	out := map[string]any{}
	for _, list := range lists {
		for _, assignment := range arg.SplitSettings(list) {
			name, value, _ := strings.Cut(strings.ReplaceAll(assignment, `"`, ""), "=")
			out[name] = value
		}
	}
	return out
}

// splitValidation splits the samples by --validate. heldOut is nil if --validate is no share.
func splitValidation(training data.Dataset, validate string, seed uint64) (kept, heldOut data.Dataset,
	err error) {
	if validate == "" || validate == partTest {
		return training, nil, nil
	}
	share, _ := strconv.ParseFloat(validate, 64) // a number, as the flag was read
	if kept, heldOut, err = data.Split(training, share, seed); err != nil {
		err = badUsage("--validate %s: %w", validate, err)
	}
	return kept, heldOut, err
}

func (j *job) planSteps(context.Context, io.Writer) (err error) {
	j.batches = (j.training.Len() + j.batch - 1) / j.batch // an epoch's last batch may be short
	if j.dropLast {
		j.batches = j.training.Len() / j.batch
	}
	updates := int64((j.batches + j.accumulate - 1) / j.accumulate)
	j.last = j.steps
	if all := int64(j.epochs) * updates; j.epochs > 0 && (j.steps == 0 || all < j.steps) {
		j.last = all
	}
	name, config := j.lrSchedule.name, j.lrSchedule.config
	config.LR, config.WarmupSteps = j.update.LR, j.warmup
	settings := map[string]any{"warmup": j.warmup}
	if j.lrSchedule.options != "" {
		settings["options"] = j.lrSchedule.options
	}
	switch name {
	case "constant": // it has no length
	case plateau:
		name, j.loop.Plateau = "constant", new(j.lrSchedule.plateau)
		j.loop.Plateau.Lowest /= j.update.LR
	default:
		config.TotalSteps = cmp.Or(j.scheduleSteps, int(j.last))
		settings["schedule-steps"] = config.TotalSteps
	}
	j.recipe.LRSchedule = train.Choice{Name: j.lrSchedule.name, Settings: settings}
	j.rateSchedule, err = optim.NewSchedule(name, config)
	return err
}

func (j *job) limitMemory(context.Context, io.Writer) error {
	for _, d := range j.config.Devices {
		d.SetLimit(cmp.Or(j.limit, j.deviceLimits[d]))
	}
	return nil
}

// findBalance times the layers, cuts the model by time and prints the balance, unless it is given.
func (j *job) findBalance(ctx context.Context, stderr io.Writer) (err error) {
	if j.config.Balance != nil {
		return nil
	}
	config := j.measureConfig(profile.Config{
		Device: j.config.Devices[0], Peer: j.config.Devices[min(1, j.stages-1)],
		Devices: j.devicesPerProcess(), Threads: j.config.Threads,
		// an error can name the least limit only after the cut
		LiftLimit: slices.Contains(j.policy, pipe.Optimal)})
	if n := len(j.config.DeviceNames()); j.program == "" && n*j.virtual == j.stages {
		config.Plan = plan.Options{Limit: j.limit, Devices: n, Virtual: []int{j.virtual},
			Schedules: []string{cmp.Or(j.schedule, "gpipe")}}
		if config.Plan.State, err = optim.Slots(j.optimizerName, j.update); err != nil {
			return err
		}
	}
	cut, err := train.BalanceByTime(ctx, j.model, j.training, j.policy, config)
	if err != nil {
		return err
	}
	j.config.Balance, j.config.Profile, j.lighter = cut.Counts, &cut.Profile, cut.Lighter
	j.timingWarned = warnOfTiming(stderr, cut.Profile.Timing)
	result, each := " within --memory-limit", []string(nil)
	for _, t := range cut.Times {
		each = append(each, fmt.Sprintf("%.3f", 1000*t.Total()))
		result = fmt.Sprintf(": a micro-batch takes the stages %s ms", strings.Join(each, ", "))
	}
	fmt.Fprintf(stderr, "--balance %s, by measured time%s\n", option.Joined(cut.Counts), result)
	return nil
}

func (j *job) measureConfig(c profile.Config) train.MeasureConfig {
	c.Seed, c.Autocast, c.Clock = j.config.Seed, j.config.Autocast, clock
	c.Loss = trainingLoss(j.training.Info().Task())
	rows := (j.batch + j.replicas - 1) / j.replicas // of a batch, in each replica
	return train.MeasureConfig{Group: j.group, Batch: rows, Chunks: j.config.Chunks, Profile: c}
}

// trainingLoss returns the loss of a task. Auxiliary classifiers add 0.3 of their losses.
func trainingLoss(task data.Task) nn.Loss {
	loss := nn.CrossEntropy()
	if task == data.Regression {
		loss = nn.MSE()
	}
	return models.NewAuxiliaryLoss(loss, 0.3)
}

// openPipe cuts the model and makes the optimizer. Nothing is on a device before placePipe.
func (j *job) openPipe(context.Context, io.Writer) (err error) {
	if j.loop.Optimizer, err = optim.New(j.optimizerName, j.update); err != nil {
		return err
	}
	config := j.config
	config.Optimizer = j.loop.Optimizer
	j.recipe.Balance, j.recipe.Processes = config.Balance, j.processCount()
	j.pipe, err = pipe.Open(j.model, config)
	return err
}

func (j *job) placePipe(context.Context, io.Writer) error {
	if j.from == nil {
		return j.weights.place(j.pipe)
	}
	err := j.pipe.Place()
	if err == nil {
		err = j.from.Restore(j.pipe, j.loop.Optimizer)
	}
	return err
}

func (j *job) openLoop(ctx context.Context, stderr io.Writer) (err error) {
	config := data.LoaderConfig{BatchSize: j.batch, Seed: j.config.Seed, Shuffle: true,
		Augment: j.data.Augment, DropLast: j.dropLast, Prefetch: 2}
	if j.from != nil {
		config.Start = j.from.Position
		config.Start.Batch = min(config.Start.Batch, j.batches) // there may be fewer samples than before
		err = j.tellStart(stderr)
	}
	l := &j.loop
	if err == nil {
		l.Loader, err = data.NewLoader(j.training, config)
	}
	if err != nil {
		return err
	}
	l.Pipe, l.Loss, l.LRSchedule = j.pipe, trainingLoss(j.training.Info().Task()), j.rateSchedule
	l.ClipNorm, l.Accumulate, l.Steps, l.Epochs = j.clipNorm, j.accumulate, j.steps, j.epochs
	if j.config.Autocast == torch.AutocastFloat16 && l.Scaler == nil {
		l.Scaler = &optim.Scaler{}
	}
	j.recorded = j.stepToRecord()
	j.pipe.SetRecord(l.Step+1 == j.recorded)
	l.OnStep = []train.Hook{j.recordStep}
	if j.testEvery > 0 { // before saving, so that each saved step has its test
		l.OnStep = append(l.OnStep, j.testing(ctx))
	}
	if j.saveEvery > 0 {
		l.OnStep = append(l.OnStep, func(s train.StepInfo) (err error) {
			if s.Step%j.saveEvery == 0 {
				_, err = j.save()
			}
			return err
		})
	}
	l.Validation = j.validation()
	l.OnEpoch = func(int) (err error) {
		if j.saveEvery == 0 || l.Best != nil && l.Best.Step == l.Step { // the best is always saved
			_, err = j.save()
		}
		return err
	}
	return l.Check()
}

func (j *job) store() train.Store { return train.Store{Dir: j.out, Keep: j.keep, Group: j.group} }

func (j *job) openStore(context.Context, io.Writer) (err error) {
	if j.out == "" {
		return nil
	}
	store := j.store()
	j.unlock, err = store.Lock() // another run might remove the checkpoint that is read
	switch {
	case errors.Is(err, train.ErrLocked):
		return fmt.Errorf("another run uses --out %s; wait for its end, or choose another --out", j.out)
	case err != nil:
		return wrongInput(err)
	}
	if j.resume || j.autoresume || j.member.Restart > 0 { // a launcher restarts with the first command line
		if err := j.openCheckpoint(); !errors.Is(err, train.ErrNoCheckpoint) {
			return err
		} else if j.resume {
			return wrongInput(err)
		}
	}
	steps, err := store.Steps()
	if err == nil && len(steps) > 0 {
		err = badUsage("--out %s holds the checkpoint of a run, at step %d; go on from it with --resume, or "+
			"choose another --out", j.out, steps[len(steps)-1])
	}
	return err
}

func (j *job) openCheckpoint() error {
	from, err := j.store().Latest()
	if err != nil {
		return err
	}
	r := j.recipe
	if j.planFrom == auto && j.world.Chunks == 0 { // the plan will decide it
		r.Chunks = from.Recipe.Chunks
	}
	if j.changedData && r.Data.Name == from.Recipe.Data.Name {
		r.Data = from.Recipe.Data
	}
	if err := from.Check(r, j.model); err != nil {
		return wrongInput(err)
	}
	j.from, j.loop.Step, j.loop.Best, j.loop.Scaler = from, from.Step, from.Best, from.Scaler
	j.loop.Plateau, j.savedStep = cmp.Or(from.Plateau, j.loop.Plateau), from.Step
	j.epoch = from.Position.Epoch
	return nil
}

// save saves the run in --out and returns the path of the checkpoint; "" without --out.
func (j *job) save() (path string, err error) {
	if j.out == "" {
		return "", nil
	}
	// Metrics come first, so that each saved step has its line on disk.
	unwritten := j.writers.Sync()
	path, err = j.store().Save(j.loop.Progress(), j.recipe, j.model, j.loop.Optimizer)
	if j.saveFailed = err != nil; !j.saveFailed {
		j.savedStep = j.loop.Step
	}
	return path, cmp.Or(err, unwritten)
}

func (j *job) tellStart(stderr io.Writer) error {
	text, was, now := "going on from "+j.from.Path, j.from.Recipe, j.recipe
	if was.Chunks != now.Chunks { // by --plan auto
		text += fmt.Sprintf("; --chunks %d instead of %d, so results differ", now.Chunks, was.Chunks)
	}
	before, after := settingsOf(was.Data), settingsOf(now.Data)
	if before["fingerprint"] != after["fingerprint"] {
		text += fmt.Sprintf("; other data: %v samples instead of %v", after["samples"], before["samples"])
	}
	now.Kernels = system.KernelNames()
	changes, err := j.from.Changes(now)
	for _, c := range changes {
		name := "--" + strings.ReplaceAll(c.Field[strings.LastIndexByte(c.Field, '.')+1:], "_", "-")
		if library, kernels := strings.CutPrefix(c.Field, "kernels."); kernels {
			name = "kernels of " + library
		}
		text += fmt.Sprintf("; %s %s instead of %s", name, strings.Trim(c.Given, `[]"`), strings.Trim(c.Saved,
			`[]"`))
		if name == "--threads" || name == "--replicas" || name[0] != '-' {
			text += ", so the last bits differ"
		}
	}
	fmt.Fprintln(stderr, text)
	return err
}
