package replay

import (
	"cmp"
	"html/template"
	"io"
	"math"
	"slices"
	"strconv"
	"time"
)

// Page is a page of HTML with tables and plots of all arms. It needs nothing from
// elsewhere, and no script.
type Page struct {
	Title string
	// Facts are what the replay was run with, by name.
	Facts [][2]string

	goal time.Duration
	arms []pageArm
}

// pageArm is what the page shows of an arm.
type pageArm struct {
	Summary
	Color     template.CSS
	Figures   []string
	quantiles []float64 // of the TTFT, at each percent
	mean      []float64 // TTFT of what came in each part of the time; NaN: nothing
	busy      []float64 // of the workers, over the mean, the busiest first
	span      float64   // seconds from the first to the last arrival
}

// NewPage makes an empty page.
func NewPage(title string, goal time.Duration, facts [][2]string) *Page {
	return &Page{Title: title, Facts: facts, goal: goal}
}

// parts is how many parts the time is shown in.
const parts = 60

// Add takes what the page shows of a result.
func (p *Page) Add(r *Result) {
	a := pageArm{Summary: r.Summary, Color: colorOf(len(p.arms))}
	for _, c := range columns(p.goal) {
		a.Figures = append(a.Figures, c.value(&r.Summary))
	}
	var ttft []float64
	for i := range r.Requests {
		a.span = max(a.span, r.Requests[i].Arrived)
	}
	var sum, n [parts]float64
	for i := range r.Requests {
		o := &r.Requests[i]
		if o.Rejected {
			continue
		}
		ttft = append(ttft, o.TTFT)
		part := min(int(ratio(o.Arrived, a.span)*parts), parts-1)
		sum[part] += o.TTFT
		n[part]++
	}
	slices.Sort(ttft)
	for q := range 101 {
		a.quantiles = append(a.quantiles, percentile(ttft, q))
	}
	for i := range parts {
		a.mean = append(a.mean, sum[i]/n[i]) // NaN for nothing
	}
	total := 0.0
	for _, b := range r.Workers {
		total += b
	}
	for _, b := range r.Workers {
		a.busy = append(a.busy, ratio(b*float64(len(r.Workers)), total))
	}
	slices.SortFunc(a.busy, func(x, y float64) int { return cmp.Compare(y, x) })
	p.arms = append(p.arms, a)
}

// colors are told apart by eyes that see few colors too (Okabe and Ito), then by dashes.
var colors = []template.CSS{"#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"}

func colorOf(i int) template.CSS { return colors[i%len(colors)] }

// dashOf is how the lines of an arm are broken where the colors are used again.
func dashOf(i int) string {
	if i < len(colors) {
		return ""
	}
	return "6 3"
}

// Write writes the page.
func (p *Page) Write(w io.Writer) error {
	var heads []string
	for _, c := range columns(p.goal) {
		heads = append(heads, c.head)
	}
	return pageTemplate.Execute(w, map[string]any{
		"Page": p, "Heads": heads, "Arms": p.arms,
		"Plots": []map[string]any{
			{"Title": "Hit rate and ideal", "SVG": p.hitPlot(), "Text": "Part of the prompt tokens that engines found in their caches. The line is one cache without bound."},
			{"Title": "Time to the first token", "SVG": p.quantilePlot(), "Text": "Percent of the served requests whose first token came within so many seconds."},
			{"Title": "Over time", "SVG": p.timePlot(), "Text": "Mean seconds to the first token, by when requests came."},
			{"Title": "Workers", "SVG": p.busyPlot(), "Text": "How long each worker computed prompts, over the mean of all, the busiest first."},
		},
	})
}

var pageTemplate = template.Must(template.New("page").Parse(`<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{.Page.Title}}</title>
<style>
body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:60em;padding:0 1em;color:#222;background:#fff}
table{border-collapse:collapse}td,th{padding:.15em .7em;text-align:right;border-bottom:1px solid #ddd}td:first-child,th:first-child{text-align:left}
.scroll{overflow-x:auto}svg{width:100%;height:auto}svg text{font:12px system-ui,sans-serif;fill:#444}
.key{display:inline-block;width:.8em;height:.8em;margin-right:.5em}
</style></head><body>
<h1>{{.Page.Title}}</h1>
<div class="scroll"><table><tr><th>arm</th>{{range .Heads}}<th>{{.}}</th>{{end}}</tr>
{{range .Arms}}<tr><td><span class="key" style="background:{{.Color}}"></span>{{.Arm}}</td>{{range .Figures}}<td>{{.}}</td>{{end}}</tr>
{{end}}</table></div>
{{range .Plots}}<h2>{{.Title}}</h2><p>{{.Text}}</p>{{.SVG}}
{{end}}<h2>Options</h2><table>{{range .Page.Facts}}<tr><td>{{index . 0}}</td><td>{{index . 1}}</td></tr>{{end}}</table>
</body></html>
`))

// hitPlot has a bar for each arm.
func (p *Page) hitPlot() template.HTML {
	const row, left = 22, 230
	s := newPlot(float64(row*len(p.arms)+30), left)
	s.x = axis{most: 1, text: func(x float64) string { return number(100 * x) }}
	most := 0.05
	for _, a := range p.arms {
		most = max(most, a.Ideal, a.HitRate)
	}
	s.x.most = most
	s.xAxis("% of the prompt tokens")
	for i, a := range p.arms {
		y := float64(i*row) + 4
		s.label(left-8, y+12, "end", a.Arm)
		s.rect(s.at(0), y, s.at(a.HitRate)-s.at(0), row-8, string(a.Color), a.Arm+" "+percent(a.HitRate)+" %")
	}
	if len(p.arms) > 0 {
		s.line(s.at(p.arms[0].Ideal), 0, s.at(p.arms[0].Ideal), s.bottom(), "#222")
	}
	return s.end()
}

// quantilePlot has a line for each arm: which part had its first token by then.
func (p *Page) quantilePlot() template.HTML {
	s := newPlot(320, 50)
	least, most := 0.1, 1.0
	for _, a := range p.arms {
		most = max(most, a.quantiles[100])
	}
	s.x = axis{least: math.Log10(least), most: math.Ceil(math.Log10(most)), decades: true, text: power}
	s.y = axis{most: 100, text: number}
	s.xAxis("seconds")
	s.yAxis()
	goal := s.at(math.Log10(max(p.goal.Seconds(), least)))
	s.line(goal, 0, goal, s.bottom(), "#999")
	for i, a := range p.arms {
		var points []point
		for q, x := range a.quantiles {
			points = append(points, point{math.Log10(max(x, least)), float64(q)})
		}
		s.path(points, string(a.Color), dashOf(i), a.Arm)
	}
	return s.end()
}

// timePlot has a line for each arm: the mean over time.
func (p *Page) timePlot() template.HTML {
	s := newPlot(320, 50)
	span, least, most := 1.0, 0.1, 1.0
	for _, a := range p.arms {
		span = max(span, a.span)
		for _, m := range a.mean {
			if m > most {
				most = m
			}
		}
	}
	s.x = axis{most: span / 60, text: number}
	s.y = axis{least: math.Log10(least), most: math.Ceil(math.Log10(most)), decades: true, text: power}
	s.xAxis("minutes")
	s.yAxis()
	for i, a := range p.arms {
		var points []point
		for part, m := range a.mean {
			if !math.IsNaN(m) {
				points = append(points, point{(float64(part) + 0.5) / parts * a.span / 60, math.Log10(max(m, least))})
			}
		}
		s.path(points, string(a.Color), dashOf(i), a.Arm)
	}
	return s.end()
}

// busyPlot has a line for each arm over the workers.
func (p *Page) busyPlot() template.HTML {
	s := newPlot(240, 50)
	workers, most := 2, 1.2
	for _, a := range p.arms {
		workers = max(workers, len(a.busy))
		if len(a.busy) > 0 {
			most = max(most, a.busy[0])
		}
	}
	s.x = axis{least: 1, most: float64(workers), text: number}
	s.y = axis{most: most, text: number}
	s.xAxis("worker")
	s.yAxis()
	for i, a := range p.arms {
		var points []point
		for w, b := range a.busy {
			points = append(points, point{float64(w + 1), b})
		}
		s.path(points, string(a.Color), dashOf(i), a.Arm)
	}
	return s.end()
}

// number is x with three digits.
func number(x float64) string { return strconv.FormatFloat(x, 'g', 3, 64) }

// power is 10^x.
func power(x float64) string { return strconv.FormatFloat(math.Pow(10, math.Round(x)), 'f', -1, 64) }
