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
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/suggest"
	"github.com/sluice-router/sluice/internal/telemetry"
)

// maxWorkerBody bounds the description of a worker, in bytes.
const maxWorkerBody = 64 << 10

// workerRequest is the body of POST /workers. The names are the SGLang model
// gateway's.
type workerRequest struct {
	URL        string `json:"url"`
	WorkerType string `json:"worker_type"`
	// BootstrapPort is a port, "none", or null or absent to ask the worker.
	BootstrapPort json.RawMessage   `json:"bootstrap_port"`
	ModelID       string            `json:"model_id"`
	APIKey        string            `json:"api_key"`
	Labels        map[string]string `json:"labels"`
	DPSize        int               `json:"dp_size"`
	// The rest is sluice's, spelled as in the configuration. Capacities are those
	// of each rank; zero or absent is what the worker tells.
	Backend             string   `json:"backend"`
	KVConnector         string   `json:"kv_connector"`
	TopologyDomain      string   `json:"topology_domain"`
	Adapters            []string `json:"adapters"`
	MaxNumBatchedTokens int64    `json:"max_num_batched_tokens"`
	TotalKVBlocks       int64    `json:"total_kv_blocks"`
	BlockSize           int64    `json:"block_size"`
	MaxRunningRequests  int64    `json:"max_running_requests"`
}

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
	}
	list.Workers, list.Total = infos, len(infos)
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
	spec, e := q.s.readWorker(body)
	if e != nil {
		q.refuse(e, reasonBadRequest)
		return
	}
	w, created, err := q.s.opts.Fleet.Add(q.r.Context(), spec)
	var wrong *fleet.SpecError
	switch {
	case errors.As(err, &wrong):
		q.refuse(openai.InvalidRequest(wrong.Field, "%s", err), reasonBadRequest)
		return
	case errors.Is(err, fleet.ErrClosed):
		q.refuse(openai.Draining(), reasonDraining)
		return
	case err != nil:
		q.refuse(openai.Internal(err), reasonInternal)
		return
	}
	if created {
		q.s.log.Info("worker is registered by request", "id", q.call.ID, "worker", w.URL(), "worker_id", w.ID(), "worker_type", w.Role().String(), "client", q.r.RemoteAddr)
	}
	q.accepted(w)
}

// readStrict decodes the one object of an operator's body. Names that mean nothing
// here are refused: who sets them counts on them. The error says that the body does
// not do what it is for: "describe a worker".
func readStrict(body []byte, in any, does string) *openai.Error {
	// What is no JSON object is told as on the routes that go on to the engines.
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
		return openai.InvalidRequest("", "the body does not %s: %s", does, fieldProblem(err, in))
	}
	return nil
}

// checkNames reads one value, whose objects may have each name once, and at the top
// only those of known, spelled so: package json takes any case, and the last of two.
// known is nil for what lies deeper.
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
				return fmt.Sprintf("the field %q is there twice; send it once", telemetry.Clip(name))
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
		_, _ = d.Token() // the end of what was open; the body was found to be JSON
	}
	return ""
}

func unknownField(name string, known []string) string {
	text := fmt.Sprintf("unknown field %q", telemetry.Clip(name))
	if near := suggest.Nearest(strings.ReplaceAll(strings.ToLower(name), "-", "_"), known); near != "" {
		text += fmt.Sprintf("; did you mean %q?", near)
	}
	return text
}

// fieldProblem is what a decoder of JSON says of a field, in the words of who wrote
// it.
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
		if i := slices.Index(fieldNames(in), name); i >= 0 && reflect.TypeOf(in).Elem().Field(i).Type != typ.Type && typ.Type.Kind() == reflect.String {
			what = "a value in " + name
		}
		return fmt.Sprintf("%s must be %s, not %s", what, jsonKind(typ.Type), number)
	}
	return strings.TrimPrefix(err.Error(), "json: ")
}

// fieldNames are the names of the fields of the struct that in points to.
func fieldNames(in any) []string {
	t := reflect.TypeOf(in).Elem()
	names := make([]string, t.NumField())
	for i := range names {
		names[i], _, _ = strings.Cut(t.Field(i).Tag.Get("json"), ",")
	}
	return names
}

// jsonKind names the values that a type is read from.
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

// readWorker reads the description of a worker.
func (s *Server) readWorker(body []byte) (fleet.WorkerSpec, *openai.Error) {
	var in workerRequest
	if err := readStrict(body, &in, "describe a worker"); err != nil {
		return fleet.WorkerSpec{}, err
	}
	spec := fleet.WorkerSpec{
		URL: in.URL, ModelID: in.ModelID, APIKey: in.APIKey, Labels: in.Labels, DPSize: in.DPSize,
		Backend: in.Backend, Connector: in.KVConnector, TopologyDomain: in.TopologyDomain, Adapters: in.Adapters,
		Capacity: admission.Capacity{
			MaxBatchedTokens: in.MaxNumBatchedTokens, KVBlocks: in.TotalKVBlocks, BlockSize: in.BlockSize, MaxRunning: in.MaxRunningRequests,
		},
	}
	if in.URL == "" {
		return spec, openai.InvalidRequest("url", "url is missing; it is the worker's base URL, like http://10.0.0.1:30000")
	}
	if !strings.Contains(in.URL, "://") {
		return spec, openai.InvalidRequest("url", "url must begin with http:// or https://; it is the worker's base URL, like http://10.0.0.1:30000")
	}
	var e *openai.Error
	if spec.Role, e = s.workerRole(in.WorkerType); e != nil {
		return spec, e
	}
	var err error
	if spec.BootstrapPort, err = bootstrapPort(in.BootstrapPort); err != nil {
		return spec, openai.InvalidRequest("bootstrap_port", "%s", err)
	}
	if in.BootstrapPort != nil && spec.BootstrapPort != fleet.BootstrapAuto && spec.Role != admission.RolePrefill {
		return spec, openai.InvalidRequest("bootstrap_port", "bootstrap_port belongs to prefill workers, and this one is %s", spec.Role)
	}
	return spec, nil
}

// workerRole reads a worker's type and refuses one that this mode has no use
// for.
func (s *Server) workerRole(name string) (admission.Role, *openai.Error) {
	if s.cfg.Fleet.PDDisaggregation {
		switch name {
		case "prefill":
			return admission.RolePrefill, nil
		case "decode":
			return admission.RoleDecode, nil
		}
		return 0, wrongRole(name, "prefill or decode: this router runs both phases apart (--pd-disaggregation)", "prefill", "decode")
	}
	switch name {
	case "", "regular":
		return admission.RoleRegular, nil
	case "prefill", "decode":
		return 0, openai.InvalidRequest("worker_type", "worker_type must be regular: %s workers need --pd-disaggregation", name)
	}
	return 0, wrongRole(name, "regular, or absent: prefill and decode workers need --pd-disaggregation", "regular")
}

// wrongRole refuses a worker's type that is none of those there may be.
func wrongRole(name, may string, roles ...string) *openai.Error {
	if name == "" {
		return openai.InvalidRequest("worker_type", "worker_type is missing; it must be %s", may)
	}
	text := fmt.Sprintf("worker_type is %q; it must be %s", telemetry.Clip(name), may)
	if near := suggest.Nearest(strings.ToLower(name), roles); near != "" {
		text += fmt.Sprintf("; did you mean %q?", near)
	}
	return openai.InvalidRequest("worker_type", "%s", text)
}

func bootstrapPort(raw json.RawMessage) (int, error) {
	switch s := string(raw); s {
	case "", "null":
		return fleet.BootstrapAuto, nil
	case `"none"`:
		return fleet.BootstrapNone, nil
	default:
		var n uint16
		if err := json.Unmarshal(raw, &n); err != nil || n == 0 {
			return 0, fmt.Errorf("bootstrap_port must be a port from 1 to 65535, \"none\", or absent to ask the worker")
		}
		return int(n), nil
	}
}

// worker tells of one worker or removes it.
func (q *request) worker() {
	id := strings.TrimPrefix(q.r.URL.Path, pathWorkers+"/")
	if q.r.Method == http.MethodDelete {
		w, ok := q.s.opts.Fleet.Remove(id)
		if !ok {
			q.refuse(workerNotFound(id), reasonNoWorker)
			return
		}
		q.s.log.Info("worker is removed by request", "id", q.call.ID, "worker", w.URL(), "worker_id", w.ID(), "client", q.r.RemoteAddr)
		q.accepted(w)
		return
	}
	w, ok := q.s.opts.Fleet.Get(id)
	if !ok {
		q.refuse(workerNotFound(id), reasonNoWorker)
		return
	}
	info := w.Info()
	q.document(http.StatusOK, &info)
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
