package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"reflect"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock.example/data"
	"penstock.example/torch"
	"penstock.example/train"
)

// evalFlags is the command line of penstock eval.
type evalFlags struct {
	trainedFlags
	dataFlags
	part, format string
}

// Parts of a data set.
const (
	partTest       = "test"
	partTrain      = "train"
	partValidation = "validation"
	partAll        = "all"
)

func newEval() *cobra.Command {
	var f evalFlags
	cmd := &cobra.Command{
		Use:   "eval DIR [flags]",
		Short: "Evaluate a trained model",
		Long: `Evaluate the model of a run of penstock train: its loss, and the accuracy or, for
regression, the mean squared error, on the data of the run or on others. DIR is the
directory of --out, whose newest checkpoint is meant, or a checkpoint.

Data, batch, micro-batches and threads are those of the run unless flags say others;
the numbers are then those that the run itself has printed, to the bit, whatever the
stages, devices and limit. Samples of --data must have the shape that the model was
trained with, and as many classes, and are normalised as in training. With --data the
run's --data-dir, --data-set and --window do not count.

One process evaluates, also a checkpoint of several. A model that is too large for a
device is cut: --stages over --devices, each under --memory-limit.`,
		Example: `  penstock eval out/fashion
  penstock eval out/fashion --best --stages 2 --memory-limit 64MiB --format json
  penstock eval out/pets --data images --data-dir holiday --data-set size=64 --part all`,
		Args: filesNamed("DIR"),
		RunE: interruptible("evaluating", func(cmd *cobra.Command, args []string) error {
			if err := checkOutput(cmd.OutOrStdout()); err != nil {
				return err
			}
			return f.run(cmd, args[0])
		}),
	}
	s := cmd.Flags()
	s.SortFlags = false
	word(s, &f.part, "part", partTest, "`PART` of the data: test, train, validation, which is what "+
		"--validate of the run has held out, or all",
		partTest, partTrain, partValidation, partAll)
	f.dataFlags.register(s, " (default: the run's data)")
	f.trainedFlags.register(s)
	formatFlag(s, &f.format)
	return cmd
}

// evalLine is the output of penstock eval.
type evalLine struct {
	Checkpoint string `json:"checkpoint"`
	Step       int64  `json:"step"`
	Data       string `json:"data"`
	Part       string `json:"part"`
	train.Evaluation
}

func (f *evalFlags) run(cmd *cobra.Command, dir string) (err error) {
	var set data.Dataset
	var name string
	t, err := f.open(cmd, dir, func(t *trained) (err error) {
		set, name, err = f.data(cmd, t)
		return err
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	progress := newCounter(cmd.ErrOrStderr(), "evaluating", "samples")
	e, err := train.Evaluate(cmd.Context(), t.pipe, set, train.EvaluateConfig{Batch: t.batch,
		Loss: trainingLoss(set.Info().Task()), OnBatch: progress.at})
	progress.end()
	if err != nil {
		return withRemedy(err)
	}
	c := t.checkpoint
	return printResult(cmd, f.format, evalLine{c.Path, c.Step, name, f.part, e}, func(w io.Writer) {
		fmt.Fprintf(w, "%s, %s after step %d: %s of %s (%s)\n", c.Path, t.recipe.Model.Name, c.Step,
			counted(e.Samples, "sample"), name, f.part)
		fmt.Fprintf(w, "loss\t%.6g\n", *e.Loss)
		if e.MSE != nil {
			fmt.Fprintf(w, "error\t%.6g (mean squared)\n", *e.MSE)
		} else {
			fmt.Fprintf(w, "accuracy\t%.2f %%\n", 100**e.Accuracy)
		}
	})
}

// data opens the data of the run, or of the flags, and checks that they suit the model.
func (f *evalFlags) data(cmd *cobra.Command, t *trained) (data.Dataset, string, error) {
	p, err := runData(cmd, t)
	if err != nil {
		return nil, "", err
	}
	p.data.OnText, p.data.TrainedOn = showText(cmd.ErrOrStderr()), t.recipe.Samples
	training, test, err := data.Open(p.dataName, p.dataDir, p.data)
	torch.TrimProcess() // reading took more than what was read
	if err != nil {
		return nil, "", ofData(err)
	}
	var set data.Dataset
	switch f.part {
	case partTest:
		set = test
	case partAll:
		set = data.Join(training, test)
	default:
		kept, held, err := p.splitValidation(training)
		switch {
		case err != nil:
			return nil, "", err
		case f.part == partTrain:
			set = kept
		case held == nil:
			return nil, "", badUsage("--part validation: the run has held nothing out of training " +
				"(--validate); want --part test")
		default:
			set = held
		}
	}
	if err := fitsTrained(set.Info(), t, cmd.Flags().Changed("data")); err != nil {
		return nil, "", err
	}
	return set, p.dataName, nil
}

// runData returns the options of a run's data; flags of the command line come first.
func runData(cmd *cobra.Command, t *trained) (*runOptions, error) {
	from, flags := trainingFlags()
	for _, name := range append([]string{"data"}, dataOnly...) {
		typed := cmd.Flags().Lookup(name)
		texts := []string{typed.Value.String()}
		if list, ok := typed.Value.(pflag.SliceValue); ok {
			texts = list.GetSlice()
		}
		for _, text := range texts {
			if !typed.Changed {
				break
			}
			if err := from.Flags().Set(name, text); err != nil {
				return nil, err
			}
		}
	}
	if !cmd.Flags().Changed("data") { // with which it starts anew
		err := t.readFlags(from)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, badUsage("--data is needed: there is no %s, which would say what the run was "+
				"trained on", t.configFile())
		}
		if err != nil {
			return nil, err
		}
	}
	p := &runOptions{trainFlags: *flags}
	p.modelName, p.settings, p.config.Seed = t.recipe.Model.Name, nil, t.recipe.Seed
	return p, p.modelFlags.check(from.Flags())
}

// fitsTrained returns an error if samples are not what a model was trained on. other says that --data is given.
func fitsTrained(info data.Info, t *trained, other bool) error {
	was := t.recipe.Samples
	if was == nil { // a checkpoint that does not say it
		return nil
	}
	flag := "--data-dir"
	if other {
		flag = "--data"
	}
	ofBytes := func(i *data.Info) bool { return i.Task() == data.NextToken && i.Source == data.Uint8 }
	for _, c := range []struct {
		what    string
		is, was any
	}{
		{"the task", info.Task(), was.Task()},
		{"inputs", fmt.Sprint(info.Input.Kind, " ", info.Input.Shape), fmt.Sprint(was.Input.Kind, " ",
			was.Input.Shape)},
		{"text as bytes", ofBytes(&info), ofBytes(was)},
		{"outputs", info.Outputs(), was.Outputs()},
		{"the classes", info.ClassNames, was.ClassNames},
	} {
		if c.what == "the classes" && (len(info.ClassNames) == 0 || len(was.ClassNames) == 0) {
			continue
		}
		if !reflect.DeepEqual(c.is, c.was) {
			return fmt.Errorf("%s: the data have %s %v, and the model was trained with %v; want data like "+
				"those of the run",
				flag, c.what, c.is, c.was)
		}
	}
	return nil
}
