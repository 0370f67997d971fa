package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"penstock.example/data"
	"penstock.example/group"
	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/profile"
	"penstock.example/report"
	"penstock.example/torch"
	"penstock.example/train"
)

// job is a plan with everything it needs: found, made, restored.
type job struct {
	plan
	group          *group.Group // nil: this process alone
	training, test data.Dataset
	heldOut        data.Dataset // of training, for validation; nil is none
	model          *nn.Sequential
	recipe         train.Recipe
	schedule       optim.Schedule
	last           int64             // the step that ends the run
	from           *train.Checkpoint // nil: from the beginning
	pipe           *pipe.Pipe
	loop           train.Loop
	show           reporter
	peaks          highest
	trace          stepTrace
	measures       measures
	dashboard      dashboard
	kept           *report.Run  // what the page of the run shows, since a step was recorded
	unsaved        bool         // saving failed
	together       bool         // all processes of the group end here, and nobody waits
	told           bool         // that measured times are uncertain
	unlock         func() error // releases --out; nil without it
	made           []string     // directories that this run has made for --out, the innermost first
}

// openJob makes a job. What can fail is tried in the order of its cost: data, checkpoints and the
// files for results come before what takes memory and time. So a slip is not found after minutes.
// The caller closes the job.
func openJob(ctx context.Context, p plan, stderr io.Writer) (*job, error) {
	j := &job{plan: p}
	if p.member.Rank > 0 { // what all processes would say is said once
		stderr = io.Discard
	}
	for _, open := range []func(ctx context.Context, stderr io.Writer) error{
		j.openGroup, j.openData, j.planSteps, j.agree, j.matchInitEarly, j.checkDirectories, j.openStore, j.checkLastBatch, j.matchInit, j.openTrace, j.choosePlan, j.checkFree, telling("measuring", j.chooseThreads), j.tellChanges, j.tellResumed, j.limitMemory, telling("measuring", j.findBalance),
		j.openPipe, j.openLoop, telling("planning", j.planMemory), telling("placing the model", j.placePipe), j.openMeasures, j.serveDashboard,
	} {
		if err := open(ctx, stderr); err != nil {
			j.tellGroup(err)
			err = errors.Join(overLimit(err), j.close())
			j.removeMade()
			return nil, err
		}
	}
	return j, nil
}

// close frees what the job holds, as far as it was opened.
func (j *job) close() error {
	if j.loop.Loader != nil {
		j.loop.Loader.Close()
	}
	if j.loop.Optimizer != nil {
		j.loop.Optimizer.Close()
	}
	var err error
	if j.pipe != nil {
		err = j.pipe.Close()
	}
	if j.model != nil {
		nn.Free(j.model)
	}
	j.setLimits(false)
	err = errors.Join(err, j.measures.close(), j.dashboard.close())
	if j.unlock != nil {
		err = errors.Join(err, j.unlock())
	}
	if j.group != nil {
		err = errors.Join(err, j.group.Close())
	}
	return err
}

// openData reads the data set, makes the model that fits it, and writes down what describes the
// two.
func (j *job) openData(context.Context, io.Writer) (err error) {
	sets, err := j.read()
	if err != nil {
		return wrongInput(err)
	}
	j.training, j.test = sets.training, sets.test
	info := j.training.Info()
	if err := j.checkPlanned(info); err != nil {
		return err
	}
	o, settings, err := j.fit(info)
	if err != nil {
		return err
	}
	if j.model, err = models.New(j.modelName, o); err != nil {
		return j.misfit(err)
	}
	if err := freeze(j.model, j.weights.trainOnly); err != nil {
		return err
	}
	fingerprint, err := train.Fingerprint(j.training)
	if err != nil {
		return err
	}
	described := map[string]any{"fingerprint": fingerprint, "samples": j.training.Len()}
	if j.training, j.heldOut, err = j.held(j.training); err != nil {
		return err
	}
	if j.heldOut != nil {
		described["validation"] = j.validate
	}
	if chosen := assigned(j.dataSettings); len(chosen) > 0 {
		described["chosen"] = chosen
	}
	j.recipe = train.Recipe{
		Model: train.Choice{Name: j.modelName, Settings: settings},
		Data:  train.Choice{Name: j.dataName, Settings: described},
		Batch: j.batch, Chunks: j.config.Chunks, Seed: j.config.Seed, ClipNorm: j.clipNorm, Threads: j.config.Threads, Replicas: j.config.Replicas,
		DeferredBatchNorm: j.config.DeferredBatchNorm, Autocast: j.config.Autocast, TrainOnly: j.weights.trainOnly,
		Optimizer: train.Choice{Name: j.optimizerName, Settings: map[string]any{
			"lr": j.update.LR, "momentum": j.update.Momentum, "nesterov": j.update.Nesterov, "weight-decay": j.update.WeightDecay,
		}},
	}
	if len(j.groups) > 0 {
		j.recipe.Optimizer.Settings.(map[string]any)["group"] = j.groups
	}
	if err := j.checkGroups(); err != nil {
		return err
	}
	if j.accumulate > 1 {
		j.recipe.Accumulate = j.accumulate
	}
	j.recipe.Steps, j.recipe.Epochs, j.recipe.SaveEvery, j.recipe.Samples = j.steps, j.epochs, j.saveEvery, &info
	return nil
}

// planSteps finds the last step and the learning rate's schedule up to it.
func (j *job) planSteps(context.Context, io.Writer) (err error) {
	batches := int64((j.training.Len() + j.batch - 1) / j.batch) // an epoch's last batch may be short
	updates := (batches + int64(j.accumulate) - 1) / int64(j.accumulate)
	j.last = j.steps
	if all := int64(j.epochs) * updates; j.epochs > 0 && (j.steps == 0 || all < j.steps) {
		j.last = all
	}
	j.schedule, j.recipe.LRSchedule, err = j.scheduled(j.last)
	return err
}

func (j *job) limitMemory(context.Context, io.Writer) error {
	j.setLimits(true)
	return nil
}

// setLimits gives the devices their limits, or takes them away.
func (j *job) setLimits(on bool) {
	for _, d := range j.config.Devices {
		if bytes := cmp.Or(j.limit, j.bytes[d]); on {
			d.SetLimit(bytes)
		} else {
			d.SetLimit(0)
		}
	}
}

// findBalance times the layers and cuts the model by time, unless the command line cuts it, and prints the cut.
func (j *job) findBalance(ctx context.Context, stderr io.Writer) (err error) {
	if j.config.Balance != nil {
		return nil
	}
	config := train.BalanceConfig{
		Group: j.group, Stages: j.stages, Batch: (j.batch + j.replicas - 1) / j.replicas, Chunks: j.config.Chunks, Checkpoint: j.config.Checkpoint, Loss: trainingLoss(j.training.Info().Task()),
		Profile: profile.Config{Device: j.config.Devices[0], Peer: j.config.Devices[min(1, j.stages-1)],
			Devices: j.devicesOfEach(), Threads: j.config.Threads, Seed: j.config.Seed, Autocast: j.config.Autocast, Clock: clock,
			LiftLimit: slices.Contains(j.policy, pipe.Optimal)}, // what limit would do can only be said when the cut is known
	}
	cut, err := train.BalanceByTime(ctx, j.model, j.training, config)
	if err != nil {
		return withFlags(err, remedyForTiming)
	}
	tellBeyond(stderr, cut.Profile.Most, cut.Profile.Beyond)
	j.config.Balance, j.config.Profile = cut.Counts, &cut.Profile
	remedy := cutAgain
	if slices.Contains(j.policy, pipe.Optimal) { // whose plans are made by the same times
		remedy = bothAgain
	}
	j.told = warnOfTiming(stderr, cut.Timing, remedy)
	var each []string
	for _, t := range cut.Times {
		each = append(each, ms(t.Total()))
	}
	fmt.Fprintf(stderr, "--balance %s, by measured time: a micro-batch takes the stages %s ms\n",
		numbers(cut.Counts), strings.Join(each, ", "))
	return nil
}

// trainingLoss is cross entropy, or the squared error for regression, plus that of auxiliary
// classifiers if the model has some.
func trainingLoss(task data.Task) nn.Loss {
	if task == data.Regression {
		return models.NewAuxiliaryLoss(nn.MSE(), auxiliaryWeight)
	}
	return models.NewAuxiliaryLoss(nn.CrossEntropy(), auxiliaryWeight)
}

// numbers is a balance as the flag takes it.
func numbers(balance []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(balance), " ", ","), "[]")
}

// openPipe cuts the model and makes the optimizer. Nothing is on a device yet.
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

// placePipe puts model and optimizer on their devices, as they were if the run is resumed,
// and with the weights of --init if it begins.
func (j *job) placePipe(context.Context, io.Writer) error {
	if err := j.pipe.Place(); err != nil {
		return withFlags(err, remedyForModel)
	}
	if j.from != nil {
		return withFlags(j.from.Restore(j.pipe, j.loop.Optimizer), remedyForModel)
	}
	if j.weights.init != "" {
		return withFlags(j.loadInit(), remedyForModel)
	}
	return nil
}

// openLoop completes the loop.
func (j *job) openLoop(ctx context.Context, stderr io.Writer) (err error) {
	config := data.LoaderConfig{BatchSize: j.batch, Seed: j.config.Seed, Shuffle: true, Augment: j.data.Augment, Prefetch: 2}
	if j.from != nil {
		config.Start = j.from.Position
		changed, err := j.changedRecipe()
		if err != nil {
			return err
		}
		if end := j.beyond(); end != "" {
			fmt.Fprintf(stderr, "the checkpoint is at step %d, beyond %s: nothing to do\n", j.from.Step, end)
		} else {
			fmt.Fprintf(stderr, "going on from %s%s%s\n", j.from.Path, j.changed(), changed)
		}
	}
	l := &j.loop
	if l.Loader, err = data.NewLoader(j.training, config); err != nil {
		return err
	}
	l.Pipe, l.Loss, l.LRSchedule = j.pipe, trainingLoss(j.training.Info().Task()), j.schedule
	l.ClipNorm, l.Accumulate, l.Steps, l.Epochs = j.clipNorm, j.accumulate, j.steps, j.epochs
	if j.config.Autocast == torch.AutocastFloat16 && l.Scaler == nil {
		l.Scaler = &optim.Scaler{}
	}
	l.OnStep = []train.Hook{j.trace.hook(j.pipe, j.loop.Step), j.keepRun}
	if j.testEvery > 0 { // before the step is saved, so that no test is missing after it
		l.OnStep = append(l.OnStep, j.testing(ctx))
	}
	if j.saveEvery > 0 {
		l.OnStep = append(l.OnStep, train.Every(j.saveEvery, func(train.StepInfo) error { _, err := j.save(); return err }))
	}
	if l.Validation = j.validation(); l.Validation != nil || j.saveEvery == 0 {
		l.OnEpoch = j.saveAfterEpoch
	}
	return nil
}
