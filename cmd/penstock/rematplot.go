package main

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"penstock.example/remat"
	"penstock.example/remat/solver"
)

// strategyMarks is how strategies are drawn. The colours can be told apart by those who do not see
// all of them (Okabe and Ito, "Color Universal Design", 2008), and no two marks have one shape.
var strategyMarks = []struct {
	strategy string
	colour   color.NRGBA
	shape    draw.GlyphDrawer
}{
	{"none", color.NRGBA{0, 0, 0, 255}, draw.BoxGlyph{}},
	{"sequential", color.NRGBA{213, 94, 0, 255}, draw.CircleGlyph{}},
	{"revolve", color.NRGBA{0, 158, 115, 255}, draw.TriangleGlyph{}},
	{"all", color.NRGBA{90, 90, 90, 255}, draw.CrossGlyph{}},
}

var curveColour = color.NRGBA{0, 114, 178, 255}

// drawCurve draws the time of plans over their memory as an SVG: a step down at the peak of each,
// since a plan is the best under every limit from its peak to the next one's.
func drawCurve(title string, c remat.Chain, points []solver.Point, baselines []remat.Baseline) ([]byte, error) {
	p := plot.New()
	p.Title.Text = title
	unit, name := memoryUnit(points[len(points)-1].Peak)
	p.X.Label.Text = "memory, " + name
	p.Y.Label.Text = "time on top of computing everything once"
	legend := plot.NewLegend()
	dress(p, &legend)

	at := func(peak int64, time float64) plotter.XY {
		overhead := 0.0
		if once := c.Once(); once > 0 {
			overhead = 100 * (time/once - 1)
		}
		return plotter.XY{X: float64(peak) / unit, Y: overhead}
	}
	var steps plotter.XYs
	for _, point := range points {
		steps = append(steps, at(point.Peak, point.Time))
	}
	marks := map[string]plotter.XYs{}
	for _, b := range baselines {
		marks[b.Strategy] = append(marks[b.Strategy], at(b.Peak, b.Time))
	}
	axes := frame(steps, marks)
	steps = append(steps, plotter.XY{X: axes.Max.X, Y: steps[len(steps)-1].Y})
	line, err := plotter.NewLine(steps)
	if err != nil {
		return nil, err
	}
	line.StepStyle, line.Color, line.Width = plotter.PostStep, curveColour, vg.Points(2)
	wall, err := plotter.NewLine(plotter.XYs{{X: steps[0].X, Y: axes.Min.Y}, {X: steps[0].X, Y: axes.Max.Y}})
	if err != nil {
		return nil, err
	}
	wall.Color, wall.Dashes = curveColour, []vg.Length{vg.Points(3), vg.Points(3)}
	p.Add(wall, line)
	legend.Add("best plan", line)
	legend.Add("least that has a plan", wall)
	for _, m := range strategyMarks {
		if len(marks[m.strategy]) == 0 {
			continue
		}
		scatter, err := plotter.NewScatter(marks[m.strategy])
		if err != nil {
			return nil, err
		}
		scatter.GlyphStyle = draw.GlyphStyle{Color: m.colour, Radius: vg.Points(4), Shape: m.shape}
		p.Add(scatter)
		legend.Add(m.strategy+beyond(marks[m.strategy], axes.Max.Y), scatter)
	}
	// Add has widened them
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = axes.Min.X, axes.Max.X, axes.Min.Y, axes.Max.Y
	canvas := &anchored{Canvas: vgsvg.New(10*vg.Inch, 5*vg.Inch)}
	whole := draw.New(canvas)
	const beside = 2.6 * vg.Inch // the legend's, off the data
	p.Draw(draw.Crop(whole, vg.Points(8), -beside, vg.Points(8), -vg.Points(8)))
	canvas.left = true
	legend.Draw(draw.Crop(whole, 10*vg.Inch-beside+vg.Points(12), 0, 0, -vg.Points(40)))
	return canvas.bytes()
}

// anchored draws text about the middle of where it is meant to be, or from its left, and as wide, whatever
// font there is: gonum places it by the widths of a font that the reader may lack.
type anchored struct {
	*vgsvg.Canvas
	left  bool // text begins where it is meant to, as beside the marks of a legend
	texts []anchor
}

// anchor is where a text is held, and how wide it is.
type anchor struct {
	at    string // of SVG: middle or start
	width vg.Length
}

func (a *anchored) FillString(face font.Face, at vg.Point, text string) {
	width := face.Width(text)
	if a.left {
		a.texts = append(a.texts, anchor{"start", width})
	} else {
		a.texts = append(a.texts, anchor{"middle", width})
		at.X += width / 2
	}
	a.Canvas.FillString(face, at, text)
}

// bytes is the file.
func (a *anchored) bytes() ([]byte, error) {
	var b bytes.Buffer
	if _, err := a.WriteTo(&b); err != nil {
		return nil, err
	}
	parts := bytes.Split(b.Bytes(), []byte("<text "))
	out := bytes.NewBuffer(parts[0])
	for i, part := range parts[1:] {
		fmt.Fprintf(out, `<text text-anchor="%s" textLength="%.5g" %s`, a.texts[i].at, a.texts[i].width.Points(), part)
	}
	// Fonts of the same widths, for those who do not have this one.
	return bytes.ReplaceAll(out.Bytes(), []byte("font-family:Liberation Sans"),
		[]byte("font-family:'Liberation Sans',Arial,Helvetica,sans-serif")), nil
}

// beyond says what of these points lies above the picture.
func beyond(points plotter.XYs, top float64) string {
	var above []float64
	for _, point := range points {
		if point.Y > top {
			above = append(above, point.Y)
		}
	}
	switch len(above) {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf(" (one above, %+.0f %%)", above[0])
	}
	return fmt.Sprintf(" (%d above)", len(above))
}

// box is the ranges of both axes.
type box struct{ Min, Max plotter.XY }

// frame finds the ranges of the axes. A strategy may take many times as long as the others, and so
// may plans near the least limit: they do not press the rest to the ground, but lie outside.
func frame(steps plotter.XYs, marks map[string]plotter.XYs) box {
	const highest = 120
	least, most, top := steps[0].X, steps[len(steps)-1].X, max(10, min(steps[0].Y, highest))
	for _, points := range marks {
		for _, point := range points {
			least, most = min(least, point.X), max(most, point.X)
			if point.Y <= highest {
				top = max(top, point.Y)
			}
		}
	}
	margin := (most - least) / 20
	if margin == 0 {
		margin = max(most/20, 0.01)
	}
	return box{plotter.XY{X: max(0, least-margin), Y: -top / 40}, plotter.XY{X: most + margin, Y: 1.06 * top}}
}

// memoryUnit is the unit in which so many bytes are at least 1, or the smallest.
func memoryUnit(bytes int64) (float64, string) {
	names := []string{"bytes", "KiB", "MiB", "GiB", "TiB"}
	unit, i := 1.0, 0
	for ; i < len(names)-1 && float64(bytes) >= 1024*unit; i++ {
		unit *= 1024
	}
	return unit, names[i]
}

// dress sets fonts, grid and places of everything.
func dress(p *plot.Plot, legend *plot.Legend) {
	for _, style := range []*text.Style{&p.Title.TextStyle, &p.X.Label.TextStyle, &p.Y.Label.TextStyle,
		&p.X.Tick.Label, &p.Y.Tick.Label, &legend.TextStyle} {
		style.Font = font.Font{Typeface: "Liberation", Variant: "Sans", Size: vg.Points(11)}
	}
	p.Title.TextStyle.Font.Size = vg.Points(13)
	p.Title.Padding, p.X.Label.Padding, p.Y.Label.Padding = vg.Points(8), vg.Points(6), vg.Points(6)
	p.X.Tick.Marker, p.Y.Tick.Marker = evenTicks{}, evenTicks{" %"}
	p.X.Padding, p.Y.Padding = 0, 0
	legend.Top, legend.Left, legend.Padding, legend.ThumbnailWidth = true, true, vg.Points(3), vg.Points(24)
	grid := plotter.NewGrid()
	pale := color.NRGBA{225, 225, 225, 255}
	grid.Horizontal.Color, grid.Vertical.Color = pale, pale
	p.Add(grid)
}

// evenTicks are some six ticks at round numbers, each with its unit.
type evenTicks struct{ unit string }

func (e evenTicks) Ticks(least, most float64) []plot.Tick {
	step := math.Pow(10, math.Floor(math.Log10((most-least)/6)))
	for _, factor := range []float64{2, 2.5, 2} { // 2, 5, 10
		if (most-least)/step > 8 {
			step *= factor
		}
	}
	var ticks []plot.Tick
	for i := math.Ceil(least / step); i*step <= most; i++ {
		ticks = append(ticks, plot.Tick{Value: i * step, Label: strconv.FormatFloat(i*step+0, 'g', 6, 64) + e.unit})
	}
	return ticks // +0 since -0 has a sign of its own
}
