package data

import (
	"cmp"
	"errors"
	"fmt"
	"image"
	_ "image/gif" // formats that image.Decode knows
	_ "image/jpeg"
	_ "image/png"
	"io"
	"io/fs"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/image/draw"

	"penstock.example/internal/arg"
	"penstock.example/internal/disk"
)

// ImageNet's mean and deviation by number of channels, rounded as in common recipes.
var (
	imageNetMean = map[int][]float64{3: {0.485, 0.456, 0.406}, 1: {0.449}}
	imageNetStd  = map[int][]float64{3: {0.229, 0.224, 0.225}, 1: {0.226}}

	pictureFiles = []string{".png", ".jpg", ".jpeg", ".gif"}
	otherImages  = []string{".bmp", ".webp", ".tif", ".tiff", ".heic", ".avif"}
)

// folder is a Dataset of pictures in files. They are read on demand.
type folder struct {
	info   Info
	files  []pictureFile
	tables [][256]float32
}

type pictureFile struct {
	path  string
	label int
}

// openFolder returns sets of pictures. Directories with training pictures are the classes.
func openFolder(paths []string, o Options) (train, test Dataset, err error) {
	size, channels := cmp.Or(o.Size, 224), cmp.Or(o.Channels, 3)
	if err := arg.AtLeast("", "Size", size, 1); err != nil {
		return nil, nil, err
	}
	if channels != 1 && channels != 3 {
		return nil, nil, &ConfigError{Field: "Channels", Value: channels,
			Remedy: "want 3 for colours, or 1 for the brightness"}
	}
	var files [][]pictureFile
	var classes []string
	directory := ""
	for _, path := range paths {
		class := filepath.Dir(path)
		if d := filepath.Dir(class); d != directory {
			directory, files = d, append(files, nil)
		}
		last, name := len(files)-1, filepath.Base(class)
		if last == 0 && !slices.Contains(classes, name) {
			classes = append(classes, name)
		}
		label := slices.Index(classes, name)
		if label < 0 {
			return nil, nil, fmt.Errorf("%s is no class to train with; the classes are %s", class,
				strings.Join(classes, ", "))
		}
		files[last] = append(files[last], pictureFile{path, label})
	}
	if len(classes) < 2 {
		return nil, nil, fmt.Errorf("classes %q; want at least two, each with a directory of pictures",
			classes)
	}
	info := Info{Name: "images", Classes: len(classes), ClassNames: classes, Source: Uint8,
		Input: Spec{Float32, []int64{int64(channels), int64(size), int64(size)}}, Target: Spec{Kind: Int64}}
	for i, class := range classes {
		if err := disk.CheckUTF8([]byte(class)); err != nil {
			return nil, nil, fmt.Errorf("the name of directory %d, %q: %w", i+1, class, err)
		}
	}
	info.Mean, info.Std = o.normalisation(imageNetMean[channels], imageNetStd[channels])
	if err := info.checkNormal(); err != nil {
		return nil, nil, err
	}
	tables := info.byteTables()
	var sets []Dataset
	for _, part := range files {
		sets = append(sets, &folder{info, part, tables})
	}
	return trainAndTest(o, sets)
}

// folderFiles lists the pictures in DIR/train/CLASS, then in DIR/val/CLASS or DIR/test/CLASS, or else in
// DIR/CLASS, sorted by class and name. Test pictures need not have all classes.
func folderFiles(directory string) (paths []string, err error) {
	directories, err := parts(directory, "%s")
	if errors.Is(err, fs.ErrNotExist) {
		directories, err = []string{directory}, nil
	}
	if err != nil {
		return nil, err
	}
	for _, part := range directories {
		classes, err := visible(part, fs.FileInfo.IsDir)
		if err == nil && classes == nil {
			err = fmt.Errorf("no directory in %s", part)
		}
		if err != nil {
			return nil, err
		}
		for _, class := range classes {
			files, err := visible(class, func(f fs.FileInfo) bool { return !f.IsDir() })
			if err != nil {
				return nil, err
			}
			before := len(paths)
			for _, path := range files {
				switch extension := strings.ToLower(filepath.Ext(path)); {
				case slices.Contains(pictureFiles, extension):
					paths = append(paths, path)
				case slices.Contains(otherImages, extension):
					return nil, fmt.Errorf("%s: %s is not read; convert the file, or remove it", path,
						extension)
				}
			}
			if len(paths) == before {
				return nil, fmt.Errorf("no picture in %s", class)
			}
		}
	}
	return paths, nil
}

func (f *folder) Len() int   { return len(f.files) }
func (f *folder) Info() Info { return f.info }

func (f *folder) Fill(batch *Batch, indices []int) error { return f.fill(batch, indices, nil) }

// fill reads the pictures of a batch in parallel. Each view chooses the part of its picture.
func (f *folder) fill(batch *Batch, indices []int, views []view) error {
	if err := batch.resize(f, indices); err != nil {
		return err
	}
	size := f.info.Input.Size()
	err := inParallel(len(indices), func(row int) error {
		var p *part
		if views != nil {
			p = views[row].part
		}
		file := f.files[indices[row]]
		batch.Target.Int64[row] = int64(file.label)
		return fillPicture(batch.Input.Float32[row*size:][:size], file.path, f.info.Input.Shape, p, f.tables)
	})
	return named("images", err)
}

// inParallel calls fill for all rows on all cores. The error is the first failing row's.
func inParallel(rows int, fill func(row int) error) error {
	errs := make([]error, rows)
	var next atomic.Int64
	var all sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), rows) {
		all.Go(func() {
			for row := int(next.Add(1)) - 1; row < rows; row = int(next.Add(1)) - 1 {
				errs[row] = fill(row)
			}
		})
	}
	all.Wait()
	return cmp.Or(errs...)
}

// large is locked while a picture of more than a few million pixels is in memory, which takes up to 16
// bytes a pixel. A small file can have any number of pixels.
var large sync.Mutex

// readPicture decodes a PNG, a JPEG, or the first image of a GIF. The caller calls free after its last use.
func readPicture(path string) (picture image.Image, free func(), err error) {
	free = func() {}
	file, err := disk.Open(path)
	if err != nil {
		return nil, free, err
	}
	defer file.Close()
	config, _, err := image.DecodeConfig(file)
	if err == nil && (config.Width < 1 || config.Height < 1 || config.Width > disk.MaxPixels/config.Height) {
		err = fmt.Errorf("it is %d x %d, and at least a pixel and at most %d are read", config.Width,
			config.Height, disk.MaxPixels)
	}
	if err == nil && config.Width*config.Height > 1<<22 {
		large.Lock()
		free = large.Unlock
		runtime.GC() // frees the one before
	}
	if err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err == nil {
		picture, _, err = image.Decode(file)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w; want a PNG, JPEG or GIF that is whole: replace the file, or remove it",
			path, err)
	}
	return picture, free, err
}

// fillPicture reads a picture, scales a part of it to a shape, and writes its planes. Transparent
// pixels become black. Each pixel is the mean of the pixels under it, weighted by a triangle
// (bilinear, with antialiasing).
func fillPicture(to []float32, path string, shape []int64, p *part, tables [][256]float32) error {
	picture, free, err := readPicture(path)
	defer free()
	if err != nil {
		return err
	}
	scaled, b := image.NewRGBA(image.Rect(0, 0, int(shape[2]), int(shape[1]))), picture.Bounds()
	x, y, w, h := p.rectangle(b.Dx(), b.Dy())
	from := image.Rect(x, y, x+w, y+h).Add(b.Min)
	if from.Size() == scaled.Rect.Size() {
		draw.Draw(scaled, scaled.Rect, picture, from.Min, draw.Src)
	} else {
		draw.BiLinear.Scale(scaled, scaled.Rect, picture, from, draw.Src, nil)
	}
	writePixels(to, scaled, tables)
	return nil
}

// writePixels maps an image's bytes by their channel's table and writes the planes: red, green and blue, or
// with one table the brightness (ITU-R BT.601, as in image/color).
func writePixels(to []float32, from *image.RGBA, tables [][256]float32) {
	plane := len(to) / len(tables)
	for i := range plane {
		rgb := from.Pix[4*i:][:3]
		if len(tables) == 1 {
			to[i] = tables[0][(19595*uint32(rgb[0])+38470*uint32(rgb[1])+7471*uint32(rgb[2])+1<<15)>>16]
			continue
		}
		for c := range tables {
			to[c*plane+i] = tables[c][rgb[c]]
		}
	}
}
