package conformance

import (
	"bytes"
	"context"
	_ "embed" // the tables
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
)

//go:embed requests.json
var requestsJSON []byte

// Golden is what a real engine answered, as Format writes it.
//
//go:embed vllm.golden
var Golden string

// GoldenMetrics are the metrics a real engine had, as Metrics lists them.
//
//go:embed metrics.golden
var GoldenMetrics string

// Request is an entry of the table.
type Request struct {
	Name string `json:"name"`
	// On is the engine that is asked: "one" (the default), "prefill" or "decode".
	On     string            `json:"on"`
	Method string            `json:"method"` // POST by default
	Path   string            `json:"path"`
	Header map[string]string `json:"header"` // besides Content-Type: application/json
	// Body is sent as it is, Raw as the text it holds. "$long" stands for a text
	// that is longer than the model's context, "$longer" for one of which that is
	// seen without counting tokens, "$handoff" for the kv_transfer_params that the
	// request named by After answered.
	Body  json.RawMessage `json:"body"`
	Raw   string          `json:"raw"`
	After string          `json:"after"`
}

// Requests reads the table.
func Requests() ([]Request, error) {
	d := json.NewDecoder(bytes.NewReader(requestsJSON))
	d.DisallowUnknownFields()
	var list []Request
	if err := d.Decode(&list); err != nil {
		return nil, fmt.Errorf("cannot read requests.json: %w", err)
	}
	return list, nil
}

// Result is what was answered to a request of the table.
type Result struct {
	Name, Shape string
}

var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// Run asks the engines, whose base URLs have the keys "one", "prefill" and
// "decode", and returns the shapes of their answers. Requests to an engine that
// is not there are left out.
func Run(ctx context.Context, engines map[string]string) ([]Result, error) {
	list, err := Requests()
	if err != nil {
		return nil, err
	}
	handOffs := map[string]string{}
	var results []Result
	for _, r := range list {
		if r.On == "" {
			r.On = "one"
		}
		base := engines[r.On]
		if base == "" {
			continue
		}
		body := r.Raw
		if r.Body != nil {
			body = string(r.Body)
		}
		body = strings.ReplaceAll(body, "$longer", strings.Repeat("a long text ", 1000))
		body = strings.ReplaceAll(body, "$long", strings.Repeat("a long text ", 600))
		if r.After != "" {
			if handOffs[r.After] == "" {
				return nil, fmt.Errorf("%s: %s has handed nothing over", r.Name, r.After)
			}
			body = strings.ReplaceAll(body, `"$handoff"`, handOffs[r.After])
		}
		status, header, answer, err := ask(ctx, r, base, body)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.Name, err)
		}
		var v struct {
			Params json.RawMessage `json:"kv_transfer_params"`
		}
		if json.Unmarshal(answer, &v) == nil && string(v.Params) != "null" {
			handOffs[r.Name] = string(v.Params)
		}
		results = append(results, Result{r.Name, Shape(status, header, answer)})
	}
	return results, nil
}

func ask(ctx context.Context, r Request, base, body string) (int, http.Header, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	method := r.Method
	if method == "" {
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(ctx, method, base+r.Path, strings.NewReader(body))
	if err != nil {
		return 0, nil, nil, err
	}
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	for k, v := range r.Header {
		if v == "" {
			req.Header.Del(k)
		} else {
			req.Header.Set(k, v)
		}
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	return resp.StatusCode, resp.Header, answer, err
}

// Metrics lists the metrics of an engine that are vLLM's own, with the names of
// their labels, sorted.
func Metrics(ctx context.Context, base string) ([]string, error) {
	status, _, body, err := ask(ctx, Request{Method: http.MethodGet, Path: "/metrics"}, base, "")
	if err != nil || status != http.StatusOK {
		return nil, fmt.Errorf("cannot read the metrics of %s: status %d, %w", base, status, err)
	}
	found := map[string]bool{}
	for line := range strings.Lines(string(body)) {
		if !strings.HasPrefix(line, "vllm:") {
			continue
		}
		name, labels, _ := strings.Cut(line[:strings.LastIndexByte(line, ' ')], "{")
		var keys []string
		for label := range strings.SplitSeq(strings.TrimSuffix(labels, "}"), ",") {
			if key, _, ok := strings.Cut(label, "="); ok {
				keys = append(keys, key)
			}
		}
		slices.Sort(keys)
		found[name+"{"+strings.Join(keys, ",")+"}"] = true
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// HasMetric tells whether a list like GoldenMetrics has a metric of that name with
// at least its labels.
func HasMetric(list, metric string) bool {
	name, labels, _ := strings.Cut(strings.TrimSuffix(metric, "}"), "{")
	for line := range strings.Lines(list) {
		if rest, ok := strings.CutPrefix(strings.TrimSuffix(line, "}\n"), name+"{"); ok {
			has := strings.Split(rest, ",")
			return !slices.ContainsFunc(strings.Split(labels, ","), func(l string) bool { return !slices.Contains(has, l) })
		}
	}
	return false
}

// Format writes results as a golden file.
func Format(results []Result) string {
	var s strings.Builder
	for _, r := range results {
		fmt.Fprintf(&s, "== %s\n%s\n", r.Name, r.Shape)
	}
	return s.String()
}

// Parse reads a golden file.
func Parse(golden string) map[string]string {
	shapes := map[string]string{}
	for part := range strings.SplitSeq(golden, "== ") {
		if name, shape, ok := strings.Cut(part, "\n"); ok {
			shapes[name] = strings.TrimSuffix(shape, "\n")
		}
	}
	return shapes
}

// Diff lists how results differ from a golden file.
func Diff(golden string, results []Result) []string {
	want := Parse(golden)
	var out []string
	for _, r := range results {
		switch w, ok := want[r.Name]; {
		case !ok:
			out = append(out, r.Name+": not in the golden file")
		case w != r.Shape:
			out = append(out, fmt.Sprintf("%s:\n the engine: %s\n here:       %s", r.Name,
				strings.ReplaceAll(w, "\n", "\n             "), strings.ReplaceAll(r.Shape, "\n", "\n             ")))
		}
	}
	return out
}
