package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock.example/data"
	"penstock.example/internal/option"
	"penstock.example/internal/system"
	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

func newModels() *cobra.Command {
	var set []string
	cmd := &cobra.Command{
		Use:   "models [NAME [--set NAME=VALUE,...]]",
		Short: "List the models, or the layers of one",
		Long: `List the models with their numbers of layers and parameters and their options, or
describe one model and its layers. penstock train fits inputs and classes to the data set.
A model may be larger than the memory.`,
		Example: `  penstock models
  penstock models unet --set B=11,C=128
  penstock models amoebanetd --set L=72,D=512 --format json`,
		Args: func(cmd *cobra.Command, args []string) error {
			return noArguments(cmd, args[min(len(args), 1):])
		},
		ValidArgsFunction: cobra.FixedCompletions(models.Names(), cobra.ShellCompDirectiveNoFileComp),
	}
	cmd.Flags().StringArrayVar(&set, "set", nil, "`NAME=VALUE,...` options of the model; may be repeated")
	return resultVerb(cmd, "", func(_ *cobra.Command, args []string) (result, error) {
		if len(args) == 1 {
			return describeModel(args[0], set)
		}
		if set != nil {
			return result{}, badUsage("--set %s: want the NAME of a model before it", strings.Join(set, ","))
		}
		var lines []modelLine
		for _, name := range models.Names() {
			_, line, err := readModel(name, nil)
			if err != nil {
				return result{}, err
			}
			lines = append(lines, line)
		}
		return result{line: lines, text: func(w io.Writer) {
			row(w, "MODEL", "LAYERS", "PARAMETERS", "OPTIONS")
			for _, l := range lines {
				row(w, l.Name, l.Layers, l.Parameters, l.options)
			}
		}}, nil
	})
}

type modelLine struct {
	Name       string         `json:"name"`
	Args       map[string]any `json:"args"` // all options
	Layers     int            `json:"layers"`
	Parameters int64          `json:"parameters"`
	Each       []layerLine    `json:"each,omitempty"` // with NAME
	options    string         // as --set takes them
}

type layerLine struct {
	Name       string `json:"name"`
	Parameters int64  `json:"parameters"`
}

func readModel(name string, set []string) (model *nn.Sequential, line modelLine, err error) {
	var o models.Options
	if err := models.Set(name, &o, set); err != nil {
		return nil, line, badUsage("--set %s", message(err))
	}
	if model, err = models.New(name, o); err != nil {
		return nil, line, badUsage("--set %s: %s", strings.Join(set, ","), message(err))
	}
	settings, err := models.Settings(name, o)
	line = modelLine{Name: name, Args: map[string]any{}, Layers: len(model.Layers()),
		Parameters: nn.Count(model)}
	var words []string
	for _, s := range settings {
		line.Args[s.Name] = s.Value
		words = append(words, fmt.Sprintf("%s=%v", s.Name, s.Value))
	}
	line.options = strings.Join(words, ",")
	return model, line, err
}

// describeModel lists the layers of a model. A parameter that layers share counts in the first of them.
func describeModel(name string, set []string) (r result, err error) {
	info, err := models.Describe(name)
	if err != nil {
		return r, wrongInput(err)
	}
	model, line, err := readModel(name, set)
	if err != nil {
		return r, err
	}
	layers := nn.Summary(model)
	for _, l := range layers {
		line.Each = append(line.Each, layerLine{l.Name, l.Parameters})
	}
	return result{line: []modelLine{line}, text: func(w io.Writer) { // a list, as without NAME
		fmt.Fprintf(w, "%s: %s\n%s\n\n", name, info.Summary, line.options)
		row(w, "LAYER", "TYPE", "PARAMETERS", "BYTES", "SHAPES")
		bytes := int64(0)
		for _, l := range layers {
			shapes := l.Shapes[:min(len(l.Shapes), 3)]
			row(w, l.Name, l.Type, l.Parameters, l.Bytes, strings.Join(shapes, ", "))
			bytes += l.Bytes
		}
		row(w, "", counted(len(layers), "layer"), line.Parameters, bytes)
	}}, nil
}

type dataFlags struct {
	dataName, dataDir string // "" is none
	dataSettings      []string
	window            int
}

// register adds the flags. defaultText ends the help of --data.
func (f *dataFlags) register(s *pflag.FlagSet, defaultText string) {
	option.Word(s, &f.dataName, "data", "", "`NAME` of the data set: "+strings.Join(data.Names(), ", ")+
		defaultText, data.Names()...)
	option.Path(s, &f.dataDir, "data-dir", "`PATH` of its files; has a default for fashion-mnist")
	s.StringArrayVar(&f.dataSettings, "data-set", nil, "`NAME=VALUE,...` of the data; a wrong NAME lists all")
	option.Count(s, &f.window, "window", 128, "length `N` of a sample: bytes of text, or tokens")
}

var dataOnly = []string{"data-dir", "data-set", "window"}
var windowed = []string{"text", "tokens", "jsonl"}

type modelFlags struct {
	modelName string
	settings  []string
	lora      adapters
	dataFlags
	folder string // of the model, or its name; "" is modelName
	// set by check
	info    models.Info
	options models.Options // of --set
	data    data.Options   // of --data-set and the model
}

func (f *modelFlags) check(s *pflag.FlagSet) (err error) {
	f.folder = cmp.Or(f.folder, f.modelName)
	if f.info, err = models.Describe(f.folder); err != nil {
		return wrongInput(err)
	}
	if err = f.checkData(s); err != nil {
		return err
	}
	if err = models.Set(f.folder, &f.options, f.settings); err != nil {
		err = badUsage("--set %s", message(err))
	}
	return err
}

var tasks = map[models.Kind][]data.Task{
	models.Image:        {data.Classification, data.Regression},
	models.Segmentation: {data.Segmentation},
	models.Text:         {data.NextToken},
}

func (f *modelFlags) checkData(s *pflag.FlagSet) error {
	if f.dataName == "" {
		return refuseWithout(s, false, "--data NAME", dataOnly...)
	}
	offered, err := data.Tasks(f.dataName)
	err = cmp.Or(err,
		refuseWithout(s, slices.Contains(windowed, f.dataName), "--data text, tokens or jsonl", "window"),
		refuseWithout(s, f.dataName != "synthetic", "--data that is read from files", "data-dir"))
	wanted := tasks[f.info.Kind]
	fits := func(t data.Task) bool { return slices.Contains(wanted, t) }
	switch {
	case err != nil:
		return err
	case !slices.ContainsFunc(offered, fits):
		return f.misfit(offered[0])
	case f.dataDir == "":
		if _, err := data.Files(f.dataName, "", f.data); err != nil {
			return badUsage("--data-dir PATH is needed: %s", message(err))
		}
	}
	if err := data.Set(f.dataName, &f.data, f.dataSettings); err != nil {
		return badUsage("--data-set %s", message(err))
	}
	f.data.Window, f.data.Synthetic.Task = f.window, wanted[0]
	f.data.Mean, f.data.Std = f.info.Mean, f.info.Std
	if models.IsFolder(f.folder) && f.dataName != "tokens" {
		f.data.Tokenizer = cmp.Or(f.data.Tokenizer, f.folder)
	}
	return nil
}

func (f *modelFlags) misfit(task data.Task) error {
	return badUsage("--model %s is for %s, and --data %s for %s; want another of the two", f.modelName,
		tasks[f.info.Kind][0], f.dataName, task)
}

type datasets struct{ training, test data.Dataset }

func (f *modelFlags) open() (sets datasets, err error) {
	sets.training, sets.test, err = data.Open(f.dataName, f.dataDir, f.data)
	system.TrimProcess() // reading took more memory than the data
	return sets, wrongInput(err)
}

// fit returns the model's options for these samples. chosen has the options of --set and the fitted ones.
func (f *modelFlags) fit(info data.Info) (o models.Options, chosen map[string]any, err error) {
	o, chosen = f.options, parseAssignments(f.settings)
	if f.lora.Rank > 0 {
		chosen["lora"] = f.lora.String()
	}
	shape, isText, defaults := info.Input.Shape, f.info.Kind == models.Text, f.info.Defaults
	type option struct {
		name string
		set  *int // value of --set; 0 is none
		data int
	}
	fitted := []option{{"classes", &o.Classes, info.Outputs()}}
	switch task := info.Task(); {
	case !slices.Contains(tasks[f.info.Kind], task):
		return o, nil, f.misfit(task)
	case isText:
		fitted = append(fitted, option{"context", &o.Context, int(shape[0])})
	case len(shape) != len(f.info.Input) || defaults.Size > 0 && shape[1] != shape[2] ||
		defaults.Channels == 0 && !slices.Equal(shape, f.info.Input):
		return o, nil, badUsage("--model %s reads inputs such as %v, and --data %s has %v; want another of "+
			"the two", f.modelName, f.info.Input, f.dataName, shape)
	default:
		if defaults.Channels > 0 {
			fitted = append(fitted, option{"channels", &o.Channels, int(shape[0])})
		}
		if defaults.Size > 0 {
			fitted = append(fitted, option{"size", &o.Size, int(shape[1])})
		}
	}
	for _, p := range fitted {
		*p.set = cmp.Or(*p.set, p.data)
		if chosen[p.name] = *p.set; *p.set < p.data || !isText && *p.set != p.data {
			remedy := map[bool]string{true: "want at least as many", false: "leave it out"}[isText]
			return o, nil, badUsage("--set %s=%d: --data %s has %d; %s", p.name, *p.set, f.dataName, p.data,
				remedy)
		}
	}
	return o, chosen, nil
}

// matchInit matches the weights that a new run starts from.
func (j *job) matchInit(_ context.Context, stderr io.Writer) error {
	if j.from != nil {
		return nil
	}
	err := j.weights.match("--model", j.modelName, j.model, stderr)
	for _, p := range nn.State(j.model) {
		if err == nil && nn.Match("classifier.*", p.Name) && slices.Contains(j.weights.rules.Skip, p.Name) &&
			!p.Trainable() {
			err = badUsage("%s has no %s of this shape, and --lora freezes it; want --train-only classifier",
				j.weights.init, p.Name)
		}
	}
	return err
}

// match compares the weights of --init, or else of the model's folder, and those of --adapter with
// a model, and prints a summary. Errors name the model's folder by folderFlag.
func (w *weightFlags) match(folderFlag, name string, model *nn.Sequential, to io.Writer) (err error) {
	check := func(flag, path string, m nn.Module, rules nn.WeightsConfig, remedy string) error {
		report, err := nn.CheckWeights(path, m, rules)
		if e := (*nn.WeightsError)(nil); errors.As(err, &e) {
			return badUsage("%s %s is not of this model:\n  * %s\n  %s", flag, path,
				strings.Join(e.Problems, "\n  * "), remedy)
		} else if err != nil {
			return wrongInput(fmt.Errorf("%s: %w", flag, err))
		}
		fmt.Fprintf(to, "%s %s: %v\n", flag, path, report)
		return nil
	}
	flag := "--init"
	remedy := "rename by --init-rename OLD=NEW, skip by --init-skip NAME, or load a part by --init-partial"
	if w.init == "" && models.IsFolder(name) {
		flag, remedy = folderFlag, "want the config.json and the weights of one model"
		if w.init, w.rules, err = models.Weights(name, model); err != nil {
			return wrongInput(fmt.Errorf("%s: %w", flag, err))
		}
	}
	if w.init != "" {
		err = check(flag, w.init, model, w.rules, remedy)
	}
	if err == nil && w.adapter != "" {
		err = check("--adapter", w.adapterFile(), nn.Adapters(model), nn.WeightsConfig{},
			"want an adapter of this model, and no --lora that differs from it")
	}
	return err
}

func (w *weightFlags) adapterFile() string { return filepath.Join(w.adapter, models.AdapterWeights) }

// place places a pipe with the weights that were matched.
func (w *weightFlags) place(p *pipe.Pipe) error {
	if w.init != "" {
		w.rules.Unfilled = true
		if _, err := nn.CheckWeights(w.init, p.Model(), w.rules); err != nil {
			return err
		}
	}
	err := p.Place()
	if err == nil && w.init != "" {
		err = loadWeights(w.init, p.Model(), w.rules)
	}
	if err == nil && w.adapter != "" {
		err = loadWeights(w.adapterFile(), nn.Adapters(p.Model()), nn.WeightsConfig{})
	}
	return err
}

// loadWeights loads the parameters that this process has.
func loadWeights(path string, m nn.Module, rules nn.WeightsConfig) error {
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	rules.Existing = true
	_, err := nn.LoadWeights(c, path, m, rules)
	system.TrimProcess() // a file's tensor may be large
	return wrongInput(err)
}
