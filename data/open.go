package data

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"penstock.example/internal/arg"
	"penstock.example/internal/disk"
	"penstock.example/tokenizer"
)

// Options configures the set that Open returns. The zero value is each set's usual form.
type Options struct {
	// Mean and Std normalise images whose pixels are in [0, 1], by channel. Nil means the set's own, or
	// ImageNet's for a folder of pictures. Other sets ignore them.
	Mean, Std []float64

	Size       int // height and width of resized pictures; 0 means 224
	Channels   int // 3 for pictures in colour, 1 for their brightness; 0 means 3
	Classes    int // of npy and tokens; 0 means the greatest in the files plus 1
	TokenBytes int // of a token in a file, 2 or 4; 0 means 2

	CSV     CSV
	Augment Augment // checked against the set; the caller gives it to the Loader

	Window    int    // length of a sample of text in bytes or tokens; 0 means 128
	Tokenizer string // path of the text's tokenizer, for tokenizer.Open; "" keeps bytes
	// OnText is called with the number of bytes of text tokenized and the total. It may be nil.
	OnText func(done, all int)

	// Holdout is the share of test samples if the files have no part for testing: the end of texts and
	// tokens, otherwise samples drawn by Seed. 0 means 0.1.
	Holdout float64
	Seed    uint64

	// TrainedOn describes the samples that a model was trained on. It replaces unset options: the task,
	// classes, columns, mean and deviation. Open refuses another tokenizer and samples of another form. It
	// may be nil.
	TrainedOn *Info

	JSONL     JSONL
	Synthetic Synthetic // the set named synthetic
}

// normalisation returns the options' mean and deviation, or else the given ones.
func (o Options) normalisation(mean, std []float64) ([]float64, []float64) {
	if o.Mean != nil {
		mean = o.Mean
	}
	if o.Std != nil {
		std = o.Std
	}
	return mean, std
}

// set is a data set that Open knows.
type set struct {
	tasks    []Task                              // possible tasks
	pathHelp string                              // describes the path; "" for a set without files
	place    string                              // default path
	settings func(o *Options) []arg.Setting      // for Set
	files    func(path string) ([]string, error) // the files for open
	open     func(files []string, o Options) (train, test Dataset, err error)
}

var sets = map[string]set{
	"mnist":         mnist.set(),
	"fashion-mnist": fashionMNIST.set(),
	"cifar10":       cifar10.set(),
	"images": {classes, "a directory with a directory of PNG, JPEG or GIF files for each class, or with " +
		"such in train and val", "", folderSettings, folderFiles, openFolder},
	"npy": {[]Task{Classification, Regression, Segmentation, NextToken},
		"a directory with x.npy and y.npy, or train_x.npy, train_y.npy, test_x.npy and test_y.npy", "",
		npySettings, npyFiles, openNPY},
	"csv": {[]Task{Classification, Regression}, fmt.Sprintf(partsWanted, "csv"), "", csvSettings,
		partFiles("csv"), openCSV},
	"tokens": {[]Task{NextToken}, fmt.Sprintf(partsWanted, "bin"), "", tokenSettings, partFiles("bin"),
		openTokens},
	"text": {[]Task{NextToken}, "a file, or a directory of .txt files", "", textSettings,
		fileOr(textFiles), openText},
	"jsonl": {[]Task{NextToken}, fmt.Sprintf(partsWanted, "jsonl"), "", jsonlSettings, partFiles("jsonl"),
		openJSONL},
	"synthetic": {[]Task{Classification, Segmentation, NextToken}, "", "", syntheticSettings,
		func(string) ([]string, error) { return nil, nil },
		func(_ []string, o Options) (train, test Dataset, err error) { return o.Synthetic.Open() }},
}

var classes = []Task{Classification}

// Register adds a data set of one's own to the sets by name. open gets Open's directory, or "".
// tasks are the set's possible tasks. Register must be called before all other functions.
func Register(name string, tasks []Task,
	open func(path string, o Options) (train, test Dataset, err error)) error {
	remedy := ""
	switch _, taken := sets[name]; {
	case name == "" || strings.ContainsAny(name, ", =\n"):
		remedy = "want a name without blanks and commas"
	case taken:
		remedy = "there is a set of that name; want another"
	case len(tasks) == 0 || open == nil:
		remedy = "want its tasks, and a function that opens it"
	}
	if remedy != "" {
		return &ConfigError{Of: "data", Field: "Data", Value: name, Remedy: remedy}
	}
	sets[name] = set{tasks: tasks, settings: func(*Options) []arg.Setting { return nil },
		files: func(path string) ([]string, error) { return []string{path}, nil },
		open:  func(paths []string, o Options) (train, test Dataset, err error) { return open(paths[0], o) }}
	return nil
}

// Names returns the names of the sets, sorted.
func Names() []string { return slices.Sorted(maps.Keys(sets)) }

// Open reads the named data set, to train and to test with, from the files in directory:
//
//	mnist          train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte,
//	               t10k-labels-idx1-ubyte, plain or with .gz
//	fashion-mnist  the same names; "" is the directory of Debian's dataset-fashion-mnist
//	cifar10        data_batch_1.bin to data_batch_5.bin and test_batch.bin, or cifar-10-batches-bin
//	images         DIR/train/CLASS/*.png, .jpg, .jpeg, .gif and DIR/val/CLASS (or DIR/test/CLASS), or
//	               DIR/CLASS
//	npy            x.npy and y.npy, or train_x.npy, train_y.npy, test_x.npy and test_y.npy (or val_).
//	               Inputs are float32 or uint8, targets classes int64 [n], masks int64 [n h w] or
//	               numbers float32 [n k]; or both are tokens int64 [n t]. Rows of numbers become
//	               images [k 1 1]
//	csv            a file, or a directory with train.csv and test.csv or val.csv; see CSV
//	tokens         a file of little-endian uint16 or uint32, or a directory with train.bin and val.bin
//	               or test.bin
//	text           a file, or a directory of .txt files sorted by name; as bytes, or as tokens of
//	               Options.Tokenizer, with its special tokens around each file
//	jsonl          a file, or a directory with train.jsonl and val.jsonl or test.jsonl; see JSONL
//	synthetic      no file: directory is ignored
//
// Nothing is downloaded. Only regular files are read, and at most 4 GiB of text. Pictures and
// tokens are read on demand, so Fill may return the error of a damaged file. Open reads and checks
// other sets as a whole. An error names the file, and is fs.ErrNotExist if the file is missing.
func Open(name, directory string, o Options) (train, test Dataset, err error) {
	s, err := find(name)
	if err != nil {
		return nil, nil, err
	}
	paths, err := s.list(directory)
	if o.Window = cmp.Or(o.Window, 128); o.TrainedOn != nil {
		o.Mean, o.Std = o.normalisation(o.TrainedOn.Mean, o.TrainedOn.Std)
		o.CSV.Task, o.Classes = cmp.Or(o.CSV.Task, o.TrainedOn.Task()), cmp.Or(o.Classes, o.TrainedOn.Classes)
	}
	if err == nil {
		train, test, err = s.open(paths, o)
	}
	if err == nil {
		err = cmp.Or(o.Augment.check(train), o.TrainedOn.checkForm(train.Info()))
	}
	if err == nil && train.Info().Input.Size() > disk.MaxPixels {
		err = fmt.Errorf("a sample has %d numbers; want at most %d", train.Info().Input.Size(),
			disk.MaxPixels)
	}
	if err != nil {
		return nil, nil, named(name, err)
	}
	return train, test, nil
}

// Files lists the files that Open reads. It returns an error if one is missing.
func Files(name, directory string, o Options) ([]string, error) {
	s, err := find(name)
	if err != nil {
		return nil, err
	}
	paths, err := s.list(directory)
	if err == nil && o.Tokenizer != "" {
		var more []string
		more, err = tokenizer.Files(o.Tokenizer)
		paths = append(paths, more...)
	}
	return paths, named(name, err)
}

// list returns the files of a set. Its errors describe the path.
func (s set) list(path string) ([]string, error) {
	if path = cmp.Or(path, s.place); path == "" && s.pathHelp != "" {
		return nil, fmt.Errorf("it has no usual place: name %s", s.pathHelp)
	}
	paths, err := s.files(path)
	if err != nil {
		return nil, fmt.Errorf("%w: name %s", err, s.pathHelp)
	}
	return paths, nil
}

// named adds the name of a data set to an error, which may be nil.
func named(name string, err error) error {
	var refused *ConfigError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused):
		refused.Of = "data: " + name
		err = refused
	default:
		err = fmt.Errorf("data: %s: %w", name, err)
	}
	return disk.Short(err)
}

// Tasks lists the possible tasks of a data set. Files and options decide; see Info.Task.
func Tasks(name string) ([]Task, error) {
	s, err := find(name)
	return slices.Clone(s.tasks), err
}

func find(name string) (set, error) {
	s, ok := sets[name]
	if !ok {
		return set{}, &ConfigError{Of: "data", Field: "Data", Value: name, Remedy: arg.OneOf(name, Names())}
	}
	return s, nil
}

// partsWanted describes the path for partFiles.
const partsWanted = "a file, or a directory with train.%[1]s and val.%[1]s or test.%[1]s"

// partFiles returns a function that lists the file at path, or the parts in a directory.
func partFiles(extension string) func(path string) ([]string, error) {
	return fileOr(func(directory string) ([]string, error) { return parts(directory, "%s."+extension) })
}

// fileOr returns a function that lists the file at path, or calls list for a directory.
func fileOr(list func(directory string) ([]string, error)) func(path string) ([]string, error) {
	return func(path string) ([]string, error) {
		if info, err := os.Stat(path); err != nil || !info.IsDir() {
			return []string{path}, err
		}
		return list(path)
	}
}

// parts lists the files to train with, and to test with if they exist. The names have a %s for the
// part: "train", then "val" or else "test".
func parts(directory string, names ...string) (paths []string, err error) {
	for _, part := range []string{"train", "val", "test"} {
		for i, name := range names {
			path, err := locate([]string{directory}, fmt.Sprintf(name, part))
			if i == 0 && len(paths) > 0 && errors.Is(err, fs.ErrNotExist) {
				break
			}
			if err != nil {
				return nil, err
			}
			paths = append(paths, path)
		}
		if len(paths) == 2*len(names) {
			break
		}
	}
	return paths, nil
}

// locate returns the path of the first of the names in one of the directories.
func locate(directories []string, names ...string) (string, error) {
	for _, directory := range directories {
		for _, name := range names {
			path := filepath.Join(directory, name)
			if _, err := os.Stat(path); err == nil {
				return path, nil
			} else if !errors.Is(err, fs.ErrNotExist) {
				return "", err
			}
		}
	}
	return "", fmt.Errorf("no %s in %s: %w", strings.Join(names, " or "), directories[0], fs.ErrNotExist)
}

// visible lists a directory, sorted, without names that begin with a dot. Links are followed.
func visible(directory string, which func(fs.FileInfo) bool) (paths []string, err error) {
	entries, err := os.ReadDir(directory) // sorted
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		path := filepath.Join(directory, entry.Name())
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		if !strings.HasPrefix(entry.Name(), ".") && which(info) {
			paths = append(paths, path)
		}
	}
	return paths, nil
}

// trainAndTest returns the sets to train and to test with. A single set is split.
func trainAndTest[D Dataset](o Options, sets []D) (train, test Dataset, err error) {
	if len(sets) == 1 {
		return split(sets[0], o.Holdout, o.Seed, true)
	}
	a, b := sets[0].Info(), sets[1].Info()
	if fmt.Sprint(a.Input, a.Target) != fmt.Sprint(b.Input, b.Target) {
		return nil, nil, fmt.Errorf("training samples have inputs %v and targets %v, test samples %v and "+
			"%v; want the same kinds and shapes", a.Input, a.Target, b.Input, b.Target)
	}
	if o.Holdout != 0 {
		return nil, nil, &ConfigError{Field: "Holdout", Value: o.Holdout,
			Problem: "there is a part to test with", Remedy: "want it left out, or no part to test with"}
	}
	return sets[0], sets[1], nil
}

// Set changes the options of the set called name by assignments such as "size=64". A string may hold
// several, separated by commas. A name occurs once in a string; a later string overrides it. The error
// lists the set's options, and o is then unchanged. Open checks options that depend on each other.
func Set(name string, o *Options, assignments []string) error {
	s, err := find(name)
	if err != nil {
		return err
	}
	changed := *o
	if err := arg.Set(name, s.settings(&changed), assignments); err != nil {
		return fmt.Errorf("data: %w", err)
	}
	*o = changed
	return nil
}

func holdout(o *Options) arg.Setting {
	return arg.Setting{Name: "holdout", Default: "0.1", Read: arg.Share(&o.Holdout)}
}

func seed(to *uint64) arg.Setting {
	return arg.Setting{Name: "seed", Default: "0", Read: arg.Whole(to, 0, math.MaxUint64)}
}

func classCount(o *Options) arg.Setting {
	return arg.Setting{Name: "classes", Default: "the greatest and one",
		Read: arg.Whole(&o.Classes, 1, 1<<20)}
}

// imageSettings returns the settings of images. normal describes the default mean and deviation.
func imageSettings(o *Options, normal string) []arg.Setting {
	return []arg.Setting{
		{Name: "crop", Default: "0", Read: arg.Whole(&o.Augment.Crop, 1, 1<<12)},
		{Name: "flip", Default: "0", Read: arg.Flag(&o.Augment.Flip)},
		{Name: "mean", Default: normal, Read: ofChannels(&o.Mean)},
		{Name: "std", Default: normal, Read: ofChannels(&o.Std)},
	}
}

// ofChannels reads a number for each channel.
func ofChannels(to *[]float64) arg.Reader {
	return func(text string) error {
		var all []float64
		for one := range strings.SplitSeq(text, ":") {
			x, err := strconv.ParseFloat(one, 64)
			if err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
				return errors.New("want a number for each channel, such as 0.485:0.456:0.406")
			}
			all = append(all, x)
		}
		*to = all
		return nil
	}
}

// wordSetting returns a setting whose value is one of several words.
func wordSetting[T any](name, usual string, values map[string]T, to *T) arg.Setting {
	return arg.Setting{Name: name, Default: usual, Read: func(text string) error {
		err := arg.Word(&text, slices.Sorted(maps.Keys(values))...)(text)
		*to = values[text]
		return err
	}}
}

// textSetting returns a setting whose value is any text but the empty one.
func textSetting(name, usual, want string, to *string) arg.Setting {
	return arg.Setting{Name: name, Default: usual, Read: func(text string) error {
		if *to = text; text == "" {
			return errors.New(want)
		}
		return nil
	}}
}

func folderSettings(o *Options) []arg.Setting {
	return append(append([]arg.Setting{
		{Name: "size", Default: "224", Read: arg.Whole(&o.Size, 1, 1<<14)},
		{Name: "channels", Default: "3", Read: arg.Whole(&o.Channels, 1, 3)},
		{Name: "scale", Default: "none", Read: arg.Share(&o.Augment.Scale)},
	}, imageSettings(o, "ImageNet's")...), holdout(o), seed(&o.Seed))
}

func npySettings(o *Options) []arg.Setting {
	return append(imageSettings(o, "none"), classCount(o), holdout(o), seed(&o.Seed))
}

func tokenSettings(o *Options) []arg.Setting {
	return []arg.Setting{wordSetting("type", "uint16", map[string]int{"uint16": 2, "uint32": 4},
		&o.TokenBytes), classCount(o), holdout(o)}
}

func textSettings(o *Options) []arg.Setting {
	return []arg.Setting{textSetting("tokenizer", "none, bytes",
		"want the path of a tokenizer.json, or of a directory with vocab.json and merges.txt", &o.Tokenizer),
		holdout(o)}
}

func jsonlSettings(o *Options) []arg.Setting {
	j := &o.JSONL
	return append(textSettings(o), seed(&o.Seed), arg.Setting{Name: "apart", Default: "0",
		Read: arg.Flag(&j.Apart)},
		textSetting("begin", "the tokenizer's", "want a token before each text, or none", &j.Begin),
		textSetting("end", "<|endoftext|> or its like", "want a token after each text", &j.End))
}

func csvSettings(o *Options) []arg.Setting {
	return []arg.Setting{
		textSetting("target", "the last column", "want the name of a column, or its number from 1",
			&o.CSV.Target),
		wordSetting("task", "by the targets", map[string]Task{string(Classification): Classification,
			string(Regression): Regression}, &o.CSV.Task),
		{Name: "header", Default: "1 if the first line differs from the columns below it",
			Read: func(text string) error {
				o.CSV.Header = new(bool)
				return arg.Flag(o.CSV.Header)(text)
			}},
		wordSetting("separator", "comma", map[string]rune{"comma": ',', "semicolon": ';', "tab": '\t'},
			&o.CSV.Separator),
		{Name: "standardise", Default: "0", Read: arg.Flag(&o.CSV.Standardise)}, holdout(o), seed(&o.Seed),
	}
}

func syntheticSettings(o *Options) []arg.Setting {
	s := &o.Synthetic
	return []arg.Setting{
		{Name: "size", Default: "28", Read: func(text string) error {
			err := arg.Whole(&s.Width, 1, 1<<14)(text)
			s.Height = s.Width
			return err
		}},
		{Name: "channels", Default: "1", Read: arg.Whole(&s.Channels, 1, 1<<12)},
		{Name: "classes", Default: "10", Read: arg.Whole(&s.Classes, 1, 1<<20)},
		{Name: "train", Default: "1024", Read: arg.Whole(&s.Train, 1, disk.MaxSamples)},
		{Name: "test", Default: "256", Read: arg.Whole(&s.Test, 1, disk.MaxSamples)},
		seed(&s.Seed),
	}
}
