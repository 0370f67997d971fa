package data

import (
	"fmt"
	"image"
	_ "image/gif" // formats that image.Decode knows
	_ "image/jpeg"
	_ "image/png"
	"io"
	"runtime"
	"sync"

	"golang.org/x/image/draw"

	"penstock.example/internal/disk"
)

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

// fillPicture reads a picture, scales its crop to a shape, and writes its planes. Transparent pixels become
// black. Each pixel is the mean of the pixels under it, weighted by a triangle (bilinear, with antialiasing).
func fillPicture(to []float32, path string, shape []int64, p *crop, tables [][256]float32) error {
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
