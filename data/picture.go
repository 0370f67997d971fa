package data

import (
	"fmt"
	"image"
	_ "image/gif" // formats that image.Decode knows
	_ "image/jpeg"
	_ "image/png"
	"io"

	"golang.org/x/image/draw"

	"penstock.example/internal/disk"
)

// maxPixels is the most pixels of a picture that is decoded. A small file can claim any number.
const maxPixels = 1 << 27

// readPicture decodes a PNG, a JPEG, or the first image of a GIF. The content says which it is.
func readPicture(path string) (picture image.Image, err error) {
	file, err := disk.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close() // only read
	config, _, err := image.DecodeConfig(file)
	if err == nil && (config.Width < 1 || config.Height < 1 || config.Width > maxPixels/config.Height) {
		err = fmt.Errorf("it is %d x %d, and at least a pixel and at most %d are read", config.Width,
			config.Height, maxPixels)
	}
	if err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err == nil {
		picture, _, err = image.Decode(file)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w; want a PNG, JPEG or GIF that is whole: replace the file, or "+
			"remove it", path, err)
	}
	return picture, nil
}

// fillPicture writes the planes of a picture of this shape, made from the crop of a file.
func fillPicture(to []float32, path string, shape []int64, p *crop, tables [][256]float32) error {
	picture, err := readPicture(path)
	if err != nil {
		return err
	}
	resized := image.NewRGBA(image.Rect(0, 0, int(shape[2]), int(shape[1])))
	resize(resized, picture, p)
	pixels(to, resized, tables)
	return nil
}

// resize takes the crop of a picture, on black where it is transparent, and makes it as large as
// to: each pixel is the mean of the pixels under it, weighted by a triangle (bilinear, with
// antialiasing). A crop that has the size is copied.
func resize(to *image.RGBA, picture image.Image, p *crop) {
	b := picture.Bounds()
	x, y, w, h := p.rectangle(b.Dx(), b.Dy())
	from := image.Rect(x, y, x+w, y+h).Add(b.Min)
	if from.Size() == to.Bounds().Size() {
		draw.Draw(to, to.Bounds(), picture, from.Min, draw.Src)
		return
	}
	draw.BiLinear.Scale(to, to.Bounds(), picture, from, draw.Src, nil)
}

// pixels writes an image's planes, each byte as its channel's table has it: red, green and blue, or
// with one table the brightness (ITU-R BT.601, as image/color has it).
func pixels(to []float32, from *image.RGBA, tables [][256]float32) {
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
