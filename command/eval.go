package command

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"penstock.example/data"
	"penstock.example/group"
	"penstock.example/internal/option"
	"penstock.example/internal/progress"
	"penstock.example/models"
	"penstock.example/tokenizer"
	"penstock.example/train"
)

// partTest is the test data as a value of --part and --validate.
const partTest = "test"

func newEval() *cobra.Command {
	var f trainedFlags
	var source dataFlags
	var part string
	cmd := &cobra.Command{
		Use:   "eval DIR [flags]",
		Short: "Evaluate a trained model",
		Long: `Print a trained model's loss and accuracy, or for regression its mean squared error.
DIR is a checkpoint, or the directory of penstock train --out for its newest checkpoint.

Flags that are left out are as in the run. The result then has the same bits as in the run,
with any stages, devices, processes and memory limit. With --data, the other flags of the
data are not taken from the run. penstock launch starts several processes.`,
		Example: `  penstock eval out/fashion
  penstock eval out/fashion --best --stages 2 --memory-limit 64MiB --format json
  penstock eval out/pets --data images --data-dir holiday --data-set size=64 --part all`,
		Args: arguments("DIR"),
	}
	s := cmd.Flags()
	s.SortFlags = false
	option.Word(s, &part, "part", partTest, "`PART` of the data: test, train, validation or all", partTest,
		"train", "validation", "all")
	source.register(s, " (default: the run's data)")
	f.register(s)
	return resultVerb(cmd, "", func(cmd *cobra.Command, args []string) (r result, err error) {
		g, err := joinEval(cmd)
		if err != nil {
			return r, err
		}
		if f.config.Group = g; g != nil {
			if !cmd.Flags().Changed("stages") {
				f.stages = g.Size()
			}
			defer func() { err = errors.Join(failGroup(g, err), g.Close()) }()
		}
		var set data.Dataset
		t, err := f.open(cmd, args[0], func(t *trained) error {
			sets, err := openData(cmd, t, &source)
			if err != nil {
				return err
			}
			share := "" // of the samples that the run held out
			if part == "train" || part == "validation" {
				share, _ = settingsOf(t.recipe.Data)["validation"].(string)
			}
			kept, heldOut, err := splitValidation(sets.training, share, t.recipe.Seed)
			set = map[string]data.Dataset{partTest: sets.test, "train": kept, "validation": heldOut,
				"all": data.Join(sets.training, sets.test)}[part]
			if err == nil && set == nil {
				err = badUsage("--part validation: the run held nothing out; want another part")
			}
			return err
		})
		if err != nil {
			return r, err
		}
		defer func() { err = errors.Join(err, t.close()) }()
		show := progress.New(cmd.ErrOrStderr(), "evaluating", "samples")
		e, err := train.Evaluate(cmd.Context(), t.pipe, set, train.EvaluateConfig{Batch: t.batch,
			Loss: trainingLoss(set.Info().Task()), OnBatch: show.At})
		show.End()
		if err != nil {
			return r, withRemedy(err, false)
		}
		c := t.checkpoint
		return result{line: evalLine{c.Path, c.Step, source.dataName, part, e}, text: func(w io.Writer) {
			fmt.Fprintf(w, "%s, %s after step %d: %s of %s (%s)\n", c.Path, t.recipe.Model.Name, c.Step,
				counted(e.Samples, "sample"), source.dataName, part)
			fmt.Fprintf(w, "loss\t%.6g\n", *e.Loss)
			if e.MSE != nil {
				fmt.Fprintf(w, "error\t%.6g (mean squared)\n", *e.MSE)
			} else {
				fmt.Fprintf(w, "accuracy\t%.2f %%\n", 100**e.Accuracy)
			}
		}}, nil
	})
}

// joinEval meets the other processes that a launcher has started; nil is none. Rank 0 speaks for all.
func joinEval(cmd *cobra.Command) (*group.Group, error) {
	member, err := groupFlags{}.config(cmd.Flags(), os.Getenv)
	if err != nil || member.Size < 2 {
		return nil, err
	}
	if member.Rank > 0 {
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
	}
	return group.Join(cmd.Context(), member)
}

type evalLine struct {
	Checkpoint string `json:"checkpoint"`
	Step       int64  `json:"step"`
	Data       string `json:"data"`
	Part       string `json:"part"`
	train.Evaluation
}

// openData opens the data set of the flags. Without --data, flags that are left out are as in the run.
func openData(cmd *cobra.Command, t *trained, f *dataFlags) (sets datasets, err error) {
	if s := cmd.Flags(); !s.Changed("data") {
		if err = errors.New("there is no run"); t.checkpoint.Version > 0 {
			file := filepath.Join(filepath.Dir(t.checkpoint.Path), flagsFile)
			err = readConfig(cmd, file, func(name string) bool {
				return name == "data" || slices.Contains(dataOnly, name)
			})
		}
		if err != nil {
			return sets, badUsage("--data is needed: %w", err)
		}
	}
	t.dataFlags = *f
	if err := t.check(cmd.Flags()); err != nil {
		return sets, err
	}
	t.data.OnText, t.data.TrainedOn = progress.Texts(cmd.ErrOrStderr()), t.recipe.Samples
	if sets, err = t.open(); err == nil && t.info.Kind == models.Text {
		err = t.checkTokens(sets.test.Info().Classes)
	}
	return sets, err
}

func newPredict() *cobra.Command {
	var f trainedFlags
	var top int
	var tokenizerPath string
	var g generator
	cmd := &cobra.Command{
		Use:   "predict DIR (FILE... | --prompt TEXT) [flags]",
		Short: "Predict classes or values for files by a trained model, or continue a text",
		Long: `Run a trained model on inputs in files, and print a line of JSON for each:

  classes    {"file": "a.png", "row": 0,
             "classes": [{"class": 7, "name": "Bag", "probability": 0.93}, ...]}
  text       the same, for the next token
  numbers    {"file": "x.npy", "row": 2, "values": [0.5]}
  pixels     {"file": "a.png", "row": 0, "pixels": [[0, 3, ...], ...]}, classes

A file is a picture (PNG, JPEG, GIF), a text, a CSV with or without the target's column,
or an .npy of one input, or of several in a leading dimension; - is standard input. DIR is
a checkpoint, or the directory of penstock train --out for its newest checkpoint. If a
file cannot be an input of the model, nothing is printed.

With --prompt a model of text continues the prompt, and the text is printed as it comes.
DIR may then be a folder with a model of Hugging Face as well.`,
		Example: `  penstock predict out/pets cat.jpg dog.jpg --top 3
  penstock predict out/pets --best photos/*.jpg | jq -r '[.file, .classes[0].name] | @tsv'
  penstock predict out/prices - < houses.csv
  penstock predict out/llama --prompt "Once upon a time" --tokens 100`,
		Args: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("prompt") {
				return arguments("DIR")(cmd, args)
			}
			return arguments("DIR", "FILE, or --prompt TEXT for a model of text,...")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if cmd.Flags().Changed("prompt") {
				return g.run(cmd, &f, args[0], tokenizerPath)
			} else if err := refuseWithout(cmd.Flags(), false, "--prompt", generatorOnly...); err != nil {
				return err
			}
			p := predictor{top: top}
			t, err := f.open(cmd, args[0], func(t *trained) error {
				return p.open(cmd, t, tokenizerPath, args[1:])
			})
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, t.close()) }()
			var all bytes.Buffer // after an error nothing is written
			out := json.NewEncoder(&all)
			show := progress.New(cmd.ErrOrStderr(), "predicting", "inputs")
			err = train.Predict(cmd.Context(), t.pipe, p.inputs, train.EvaluateConfig{Batch: t.batch,
				OnBatch: show.At}, func(i int, output []float32) error {
				line, err := p.line(i, output)
				return cmp.Or(err, out.Encode(line))
			})
			show.End()
			if err != nil {
				return withRemedy(err, false)
			}
			_, err = cmd.OutOrStdout().Write(all.Bytes())
			return err
		},
	}
	s := cmd.Flags()
	option.Count(s, &top, "top", 5, "`K` most likely classes of each input")
	option.Path(s, &tokenizerPath, "tokenizer", "`PATH` of the tokenizer for text (default: the run's)")
	g.register(s)
	f.register(s)
	return cmd
}

type predictor struct {
	top    int
	inputs *data.Inputs
	tokens *tokenizer.Tokenizer // nil is none
}

type predictionLine struct {
	File    string      `json:"file"`
	Row     int         `json:"row"`
	Classes []classLine `json:"classes,omitempty"`
	Values  []float32   `json:"values,omitempty"`
	Pixels  [][]int     `json:"pixels,omitempty"`
}

type classLine struct {
	Class       int     `json:"class"`
	Name        string  `json:"name,omitempty"`
	Probability float32 `json:"probability"`
}

// open opens the files. A model of tokens needs the tokenizer at path; "" is the run's.
func (p *predictor) open(cmd *cobra.Command, t *trained, path string, files []string) (err error) {
	samples := t.recipe.Samples
	if samples == nil {
		return fmt.Errorf("%s has no samples; want --prompt, or train.Predict in Go", t.checkpoint.Path)
	}
	ofTokens := samples.Task() == data.NextToken && samples.Source != data.Uint8
	err = cmp.Or(refuseWithout(cmd.Flags(), ofTokens, "a model of tokens", "tokenizer"),
		refuseWithout(cmd.Flags(), samples.Task() == data.Classification || samples.Task() == data.NextToken,
			"classes to predict", "top"))
	if err == nil && ofTokens {
		p.tokens, err = t.tokenizer(path)
	}
	if err == nil && p.tokens != nil {
		samples.Begin, err = t.beginTokens(p.tokens)
	}
	if err == nil {
		p.inputs, err = data.NewInputs(*samples, p.tokens, files)
	}
	return err
}

func (p *predictor) line(i int, output []float32) (line predictionLine, err error) {
	info := p.inputs.Info()
	line.File, line.Row = p.inputs.Source(i)
	if slices.ContainsFunc(output, func(x float32) bool { return x-x != 0 }) { // infinite, or no number
		return line, fmt.Errorf("%s, row %d: the output is not finite: the training diverged, or the input "+
			"is unlike its data", line.File, line.Row)
	}
	switch info.Task() {
	case data.Regression:
		line.Values = output
	case data.Segmentation:
		line.Pixels = likelyClasses(output, info.Classes, int(info.Target.Shape[1]))
	default:
		for _, class := range train.Likely(output, p.top) {
			line.Classes = append(line.Classes, classLine{class, p.className(info, class), output[class]})
		}
	}
	return line, nil
}

func likelyClasses(output []float32, classes, width int) [][]int {
	pixels := make([]int, len(output)/classes)
	for at := range pixels {
		for class := range classes {
			if output[class*len(pixels)+at] > output[pixels[at]*len(pixels)+at] {
				pixels[at] = class
			}
		}
	}
	return slices.Collect(slices.Chunk(pixels, width))
}

// className returns the name of a class, or "". A byte is named by its character, a token by its text.
func (p *predictor) className(info data.Info, class int) string {
	switch {
	case p.tokens != nil && class < p.tokens.Len():
		text, _ := p.tokens.Decode([]int32{int32(class)})
		return string(text)
	case class < len(info.ClassNames):
		return info.ClassNames[class]
	case info.Input.Kind == data.Int64 && info.Source == data.Uint8 && class < 128:
		return string(rune(class))
	}
	return ""
}
