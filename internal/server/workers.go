package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/discovery"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/suggest"
	"github.com/sluice-router/sluice/internal/text"
)

// maxWorkerBody bounds the description of a worker, in bytes.
const maxWorkerBody = 64 << 10

// workers lists the workers or registers one.
func (q *request) workers() {
	if q.r.Method == http.MethodPost {
		q.addWorker()
		return
	}
	infos := q.s.opts.Fleet.Infos()
	var list struct {
		Workers []fleet.Info `json:"workers"`
		Total   int          `json:"total"`
		Stats   struct {
			Prefill int `json:"prefill_count"`
			Decode  int `json:"decode_count"`
			Regular int `json:"regular_count"`
			Healthy int `json:"healthy_count"`
			Waiting int `json:"waiting_requests"`
		} `json:"stats"`
		// Sources are where workers are declared, and what became of the last readings.
		Sources []discovery.Status `json:"sources,omitempty"`
	}
	list.Workers, list.Total = infos, len(infos)
	if s := q.s.opts.Sources; s != nil {
		list.Sources = s.Status()
	}
	for i := range infos {
		switch infos[i].WorkerType {
		case admission.RolePrefill.String():
			list.Stats.Prefill++
		case admission.RoleDecode.String():
			list.Stats.Decode++
		default:
			list.Stats.Regular++
		}
		if infos[i].IsHealthy {
			list.Stats.Healthy++
		}
	}
	list.Stats.Waiting = q.s.opts.Gate.Waiting()
	q.document(http.StatusOK, &list)
}

// accepted is the answer to a change that goes on in the background.
type accepted struct {
	Status   string `json:"status"`
	WorkerID string `json:"worker_id"`
	URL      string `json:"url"`
	Location string `json:"location"`
}

func (q *request) accepted(w *fleet.Worker) {
	a := accepted{Status: "accepted", WorkerID: w.ID(), URL: w.URL(), Location: pathWorkers + "/" + w.ID()}
	q.out.Header()["Location"] = []string{a.Location}
	q.document(http.StatusAccepted, &a)
}

func (q *request) addWorker() {
	body, ok := q.smallBody()
	if !ok {
		return
	}
	spec, e := q.s.readWorker(body, "")
	if e != nil {
		q.refuse(e, reasonBadRequest)
		return
	}
	w, _, err := q.s.opts.Fleet.Add(q.r.Context(), spec, q.orderedBy()...)
	if err != nil {
		q.refuseChange(w, spec.URL, err)
		return
	}
	q.accepted(w)
}

// readStrict decodes the JSON object of an operator's request. Unknown fields are
// refused: a client that sets one expects an effect. does says what the body is for, in
// the error: "the body does not describe a worker".
func readStrict(body []byte, in any, does string) *openai.Error {
	// A body that is not a JSON object has the same error as on inference routes.
	peeked, err := openai.Peek(openai.RouteOther, body, openai.PeekOptions{})
	if err != nil {
		return asError(err)
	}
	peeked.Release()
	if problem := checkNames(json.NewDecoder(bytes.NewReader(body)), fieldNames(in)); problem != "" {
		return openai.InvalidRequest("", "the body does not %s: %s", does, problem)
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(in); err != nil {
		var wrong *config.FieldError
		if errors.As(err, &wrong) {
			return openai.InvalidRequest(wrong.Field, "%s", wrong)
		}
		field := ""
		var typ *json.UnmarshalTypeError
		if errors.As(err, &typ) {
			field, _, _ = strings.Cut(typ.Field, ".")
		}
		return openai.InvalidRequest(field, "the body does not %s: %s", does, fieldProblem(err, in))
	}
	return nil
}

// checkNames reads one value and checks that its objects have no duplicate names, and at
// the top level only names of known in that spelling: package json ignores case and takes
// the last of two. known is nil for nested values.
func checkNames(d *json.Decoder, known []string) (problem string) {
	t, err := d.Token()
	if err != nil {
		return err.Error()
	}
	seen := map[string]bool{}
	for open, ok := t.(json.Delim); ok && d.More(); {
		if open == '{' {
			t, err := d.Token()
			name, isName := t.(string)
			if err != nil || !isName {
				return "it is not valid JSON"
			}
			if seen[name] {
				return fmt.Sprintf("the field %q is given twice; send it once", text.Line(name))
			}
			seen[name] = true
			if known != nil && !slices.Contains(known, name) {
				return unknownField(name, known)
			}
		}
		if problem := checkNames(d, nil); problem != "" {
			return problem
		}
	}
	if _, ok := t.(json.Delim); ok {
		_, _ = d.Token() // the closing bracket; the body is known to be valid JSON
	}
	return ""
}

func unknownField(name string, known []string) string {
	text := fmt.Sprintf("unknown field %q", text.Line(name))
	if near := suggest.Nearest(strings.ReplaceAll(strings.ToLower(name), "-", "_"), known); near != "" {
		text += fmt.Sprintf("; did you mean %q?", near)
	}
	return text
}

// fieldProblem turns an error of package json about a field into the names and kinds
// that the client knows.
func fieldProblem(err error, in any) string {
	var typ *json.UnmarshalTypeError
	if errors.As(err, &typ) && typ.Field != "" {
		value, number, _ := strings.Cut(typ.Value, " ") // "number 1.5"
		if number == "" {
			number = map[string]string{"array": "an array", "object": "an object", "bool": "a boolean"}[value]
		}
		if number == "" {
			number = "a " + value
		}
		what := typ.Field
		name, _, _ := strings.Cut(what, ".")
		if f, ok := fieldNamed(in, name); ok && f.Type != typ.Type && typ.Type.Kind() == reflect.String {
			what = "a value in " + name
		}
		return fmt.Sprintf("%s must be %s, not %s", what, jsonKind(typ.Type), number)
	}
	return strings.TrimPrefix(err.Error(), "json: ")
}

// fieldNamed is the field that name stands for in the struct that in points to.
func fieldNamed(in any, name string) (reflect.StructField, bool) {
	for _, f := range reflect.VisibleFields(reflect.TypeOf(in).Elem()) {
		if n, _, _ := strings.Cut(f.Tag.Get("json"), ","); n == name && name != "-" {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

// fieldNames are the names of the fields of the struct that in points to.
func fieldNames(in any) []string {
	t := reflect.TypeOf(in).Elem()
	var names []string
	for i := range t.NumField() {
		if name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); name != "-" {
			names = append(names, name)
		}
	}
	return names
}

// jsonKind is the kind of JSON value that a Go type is decoded from.
func jsonKind(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "an array of strings"
	case reflect.Map:
		return "an object of strings"
	}
	return "a " + t.String()
}

// readWorker reads the description of a worker. The names are the SGLang model
// gateway's where it has them, else those of the configuration. Capacities are those of
// each rank; zero or absent: what the worker reports. url is that of a body without one.
func (s *Server) readWorker(body []byte, url string) (config.Worker, *openai.Error) {
	var w config.Worker
	if err := readStrict(body, &w, "describe a worker"); err != nil {
		return w, err
	}
	if w.URL == "" {
		w.URL = url
	}
	if w.URL == "" {
		return w, openai.InvalidRequest("url", "url is missing; it is the worker's base URL, like http://10.0.0.1:30000")
	}
	if !strings.Contains(w.URL, "://") {
		return w, openai.InvalidRequest("url", "url must begin with http:// or https://, or with grpc:// or grpcs://; it is the worker's base URL, like http://10.0.0.1:30000")
	}
	var e *openai.Error
	if w.Type, e = s.workerType(string(w.Type)); e != nil {
		return w, e
	}
	if w.BootstrapPort != config.BootstrapAuto && w.Type != config.WorkerPrefill {
		return w, openai.InvalidRequest("bootstrap_port", "bootstrap_port belongs to prefill workers, and this one is %s", w.Type)
	}
	return w, nil
}

// workerType parses a worker's type and refuses one that cannot be used in this mode.
func (s *Server) workerType(name string) (config.WorkerType, *openai.Error) {
	if s.cfg.Fleet.PDDisaggregation {
		switch name {
		case "prefill":
			return config.WorkerPrefill, nil
		case "decode":
			return config.WorkerDecode, nil
		}
		return "", invalidRole(name, "prefill or decode: this router runs both phases apart (--pd-disaggregation)", "prefill", "decode")
	}
	switch name {
	case "", "regular":
		return config.WorkerRegular, nil
	case "prefill", "decode":
		return "", openai.InvalidRequest("worker_type", "worker_type must be regular: %s workers need --pd-disaggregation", name)
	}
	return "", invalidRole(name, "regular, or absent: prefill and decode workers need --pd-disaggregation", "regular")
}

// invalidRole is the error for a worker type that is not one of roles.
func invalidRole(name, may string, roles ...string) *openai.Error {
	if name == "" {
		return openai.InvalidRequest("worker_type", "worker_type is missing; it must be %s", may)
	}
	text := fmt.Sprintf("worker_type is %q; it must be %s", text.Line(name), may)
	if near := suggest.Nearest(strings.ToLower(name), roles); near != "" {
		text += fmt.Sprintf("; did you mean %q?", near)
	}
	return openai.InvalidRequest("worker_type", "%s", text)
}

func (q *request) document(status int, v any) {
	q.reason = reasonOK
	b, err := json.Marshal(v)
	if err != nil {
		q.refuse(openai.Internal(err), reasonInternal)
		return
	}
	q.json(status, b)
}
