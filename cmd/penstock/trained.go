package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock.example/balance"
	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
	"penstock.example/train"
)

// trainedFlags say which checkpoint of a run is meant, and how its model is run.
type trainedFlags struct {
	best       bool
	stages     int
	allThreads bool
	config     pipe.Config
	limit      int64
	batch      int
}

func (f *trainedFlags) register(s *pflag.FlagSet) {
	s.SortFlags = false
	bestFlag(s, &f.best)
	count(s, &f.stages, "stages", 1, "`N` stages that the model is cut into")
	list(s, &f.config.Balance, "balance", "`N,N,...` layers of each stage; left out, parameters are spread evenly", layers)
	list(s, &f.config.Devices, "devices", "`LIST` of devices, one for each of --stages (default cpu:0,cpu:1,...)", device)
	count(s, &f.batch, "batch", 0, "`N` samples that are run at once (default: as in training)")
	count(s, &f.config.Chunks, "chunks", 0, "`N` micro-batches of each batch (default: as in training)")
	threadsFlag(s, &f.config.Threads, &f.allThreads, "as in training")
	size(s, &f.limit, "memory-limit", "most memory of each device, as a `SIZE` such as 512MiB (default none)")
}

func bestFlag(s *pflag.FlagSet, best *bool) {
	s.BoolVar(best, "best", false, "the checkpoint with the best validation, in place of the newest")
}

// trained is a model with the weights of a checkpoint, in a pipe that trains nothing.
type trained struct {
	checkpoint *train.Checkpoint
	recipe     train.Recipe
	model      *nn.Sequential
	pipe       *pipe.Pipe
	batch      int
}

// findTrained opens the checkpoint that a directory and --best mean.
func findTrained(dir string, best bool) (*train.Checkpoint, train.Recipe, error) {
	c, err := findCheckpoint(dir)
	if err == nil && best {
		c, err = bestOf(dir, c)
	}
	if err != nil {
		return nil, train.Recipe{}, err
	}
	return c, c.Recipe, nil
}

// bestOf opens the checkpoint with the best validation of a run, of which c is the newest.
func bestOf(dir string, c *train.Checkpoint) (*train.Checkpoint, error) {
	if c.Best == nil {
		return nil, badUsage("--best: there was no validation up to %s; want --best left out, or a run of penstock train with --validate", c.Path)
	}
	path := train.Store{Dir: filepath.Dir(c.Path)}.Path(c.Best.Step)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, badUsage("--best: %s, the best by %s, is not there; want --best left out, or the directory of the run", path, c.Path)
	}
	return train.OpenCheckpoint(path)
}

// open makes a trained model, with the settings of its training where flags are left out. What can fail
// is tried in the order of its cost: prepare, which is told of the model before anything is on a device,
// finds what it is to be run on. The caller closes the model.
func (f *trainedFlags) open(cmd *cobra.Command, dir string, prepare func(*trained) error) (t *trained, err error) {
	t = &trained{}
	if t.checkpoint, t.recipe, err = findTrained(dir, f.best); err != nil {
		return nil, err
	}
	if t.model, err = modelOfRecipe(t.checkpoint.Path, t.recipe); err != nil {
		return nil, wrongInput(err)
	}
	config := f.config
	config.Autocast = t.recipe.Autocast
	t.batch = f.batch
	if f.batch == 0 {
		t.batch = max(t.recipe.Batch, 1)
	}
	if config.Chunks == 0 {
		config.Chunks = max(t.recipe.Chunks, 1)
	}
	if !cmd.Flags().Changed("threads") {
		config.Threads = max(t.recipe.Threads, 1)
	}
	if err := f.cut(cmd, &config, t.model); err != nil {
		return nil, err
	}
	if err := prepare(t); err != nil {
		return nil, wrongInput(err)
	}
	for _, d := range config.Devices {
		d.SetLimit(f.limit)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.close())
		}
	}()
	if t.pipe, err = pipe.Open(t.model, config); err != nil {
		return t, err
	}
	if err := t.pipe.Place(); err != nil {
		return t, withFlags(err, remedyForModel)
	}
	return t, withFlags(t.checkpoint.RestoreModel(t.pipe), remedyForModel)
}

// cut makes stages, as many as --stages or --balance say, on devices.
func (f *trainedFlags) cut(cmd *cobra.Command, config *pipe.Config, model *nn.Sequential) error {
	s, all := cmd.Flags(), model.Layers()
	if config.Balance != nil && !s.Changed("stages") {
		f.stages = len(config.Balance)
	}
	switch {
	case f.stages > len(all):
		return badUsage("--stages %d: the model has %d layers; want at most as many stages", f.stages, len(all))
	case f.stages > torch.MaxCPU && config.Devices == nil:
		return badUsage("--stages %d: there are %d CPU devices; want fewer stages, or --devices that name one more than once", f.stages, torch.MaxCPU)
	case config.Balance != nil && len(config.Balance) != f.stages:
		return badUsage("--balance %s with --stages %d: want a number for each stage", numbers(config.Balance), f.stages)
	case config.Balance == nil:
		var costs []float64
		for _, l := range all {
			bytes := 1.0 // so that layers without parameters are spread as well
			for _, p := range nn.State(l.Layer) {
				bytes += float64(p.Bytes())
			}
			costs = append(costs, bytes)
		}
		var err error
		if config.Balance, err = balance.Partition(costs, f.stages); err != nil {
			return err
		}
	}
	if config.Devices == nil {
		for i := range f.stages {
			config.Devices = append(config.Devices, torch.CPU(i))
		}
	}
	if f.allThreads {
		config.Threads = coresFor(runtime.NumCPU(), len(config.DeviceNames()))
	}
	return inFlags(s, config.Check(model))
}

// close frees the model.
func (t *trained) close() (err error) {
	if t.pipe != nil {
		devices := t.pipe.Devices()
		err = t.pipe.Close()
		for _, d := range devices {
			d.SetLimit(0)
		}
	}
	nn.Free(t.model)
	return err
}

// trainingFlags are the flags of penstock train, all left out.
func trainingFlags() (*cobra.Command, *trainFlags) {
	cmd, flags := &cobra.Command{Use: "train"}, &trainFlags{}
	flags.register(cmd)
	path(cmd.Flags(), new(string), "config", "")
	return cmd, flags
}

// configFile is where the run has kept its flags.
func (t *trained) configFile() string {
	return filepath.Join(filepath.Dir(t.checkpoint.Path), configName)
}

// flags are those that the run was started with, as it has kept them. The error is fs.ErrNotExist if it
// has not.
func (t *trained) flags() (*cobra.Command, *trainFlags, error) {
	cmd, flags := trainingFlags()
	if _, err := os.Stat(t.configFile()); err != nil {
		return nil, nil, err
	}
	if err := cmd.Flags().Set("config", t.configFile()); err != nil {
		return nil, nil, err
	}
	return cmd, flags, readConfig(cmd)
}

// modelOfRecipe makes the model that a checkpoint is of.
func modelOfRecipe(path string, r train.Recipe) (*nn.Sequential, error) {
	var o models.Options
	if !slices.Contains(models.Names(), r.Model.Name) {
		return nil, fmt.Errorf("checkpoint %s is of a model %q, which penstock models does not list; want a run of penstock train, or the Go program that has the model: penstock export writes the weights",
			path, r.Model.Name)
	}
	settings, _ := r.Model.Settings.(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		text := fmt.Sprint(settings[name])
		if err := models.Set(r.Model.Name, &o, []string{name + "=" + text}); err != nil {
			return nil, fmt.Errorf("checkpoint %s: %w", path, err)
		}
	}
	return models.New(r.Model.Name, o)
}

// asJSON writes a line of JSON.
func asJSON(cmd *cobra.Command, v any) error {
	return json.NewEncoder(cmd.OutOrStdout()).Encode(v)
}
