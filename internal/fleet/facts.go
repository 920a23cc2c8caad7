package fleet

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/sluice-router/sluice/internal/config"
)

// ModelInfo is an entry of GET /v1/models.
type ModelInfo struct {
	ID     string
	Root   string
	Parent string // of a LoRA adapter: its base model
	// OwnedBy is the engine's name for itself.
	OwnedBy     string
	Created     int64
	MaxModelLen int64 // 0: not reported
}

// Facts are what a worker reports about itself. Any of them may be missing: an engine
// need not have any of the routes. Immutable.
type Facts struct {
	// Backend is the dialect that its answers prove; empty if they do not.
	Backend string
	// Connector is the KV connector that a probe of a vLLM prefill worker found; empty
	// when it was not probed or did not answer.
	Connector string
	// CacheType is vLLM's cache_dtype.
	CacheType string
	// Models are its base models under the names it serves them, Adapters its
	// LoRA adapters.
	Models, Adapters []ModelInfo
	ServedName       string // served_model_name
	ModelPath        string
	// Mode is SGLang's disaggregation_mode: "null", "prefill" or "decode".
	Mode          string
	BootstrapPort int
	DPSize        int
	Version       string

	// Capacities, 0 when not reported (SGLang's server_args of the same names).
	MaxRunningRequests int64
	ChunkedPrefillSize int64
	MaxPrefillTokens   int64
	MaxTotalTokens     int64 // scheduler_info.max_total_num_tokens, of one rank
	PageSize           int64
	// DPAttention: MaxRunningRequests is shared out among the data-parallel
	// ranks.
	DPAttention bool
	// states and loads have what the worker reports of each data-parallel rank, in
	// /server_info and in /v1/loads.
	states, loads []rankCapacity

	// Missing are the information routes that the worker does not have or
	// answered with something else.
	Missing []string
	// Warnings are for the operator: what of an answer could not be used.
	Warnings []string

	// read: they were asked for. incomplete: a route failed in a way that may
	// pass; they are to be asked for again.
	read, incomplete bool
	// answered: some route said anything but 404.
	answered bool
	// infoLost: of these routes it was /server_info.
	infoLost bool
	// noLoads: it has no /v1/loads.
	noLoads bool
	// fingerprint distinguishes this engine process from another one at the same
	// address, beside the other fields: see fingerprintOf. Zero: unknown.
	fingerprint uint64
	// oldInfo: it has /get_server_info and no /server_info.
	oldInfo bool
	// started is when a vLLM engine's process began, in seconds since 1970. Zero:
	// not reported.
	started float64
	// connectorProbed: its connector was probed for.
	connectorProbed bool
	// connectorNote is what the connector probe found, for the operator.
	connectorNote string
}

var noFacts = &Facts{}

// names are the base models' names in the order of how sure they are: what
// /v1/models lists, else served_model_name, else the path.
func (f *Facts) names() []string {
	var names []string
	for _, m := range f.Models {
		if !slices.Contains(names, m.ID) && len(names) < maxModels {
			names = append(names, m.ID)
		}
	}
	switch {
	case len(names) > 0:
	case f.ServedName != "":
		names = []string{f.ServedName}
	case f.ModelPath != "":
		names = []string{f.ModelPath}
	}
	return names
}

// maxModelLen is the context of its first model, 0 when not reported.
func (f *Facts) maxModelLen() int64 {
	i := slices.IndexFunc(f.Models, func(m ModelInfo) bool { return m.MaxModelLen > 0 })
	if i < 0 {
		return 0
	}
	return f.Models[i].MaxModelLen
}

// onlySelfAffected reports whether what is new since the old facts is no other worker's
// business: nothing of what it serves and how it is paired.
func (f *Facts) onlySelfAffected(old *Facts) bool {
	return f.read == old.read && f.Backend == old.Backend && f.Connector == old.Connector && f.CacheType == old.CacheType &&
		f.ServedName == old.ServedName && f.ModelPath == old.ModelPath && f.DPSize == old.DPSize && f.sameNames(old)
}

// otherEngine reports whether the facts are those of another engine process than the
// old ones: started at another time, of another kind, or with other arguments. A
// longer list of models is no sign of that.
func (f *Facts) otherEngine(old *Facts) bool {
	return old.read && (f.fingerprint != old.fingerprint || f.started != old.started || f.Backend != old.Backend)
}

// sameNames reports whether both list the same models and adapters.
func (f *Facts) sameNames(old *Facts) bool {
	same := func(a, b ModelInfo) bool {
		a.Created = b.Created // some engines make it up for each answer
		return a == b
	}
	return slices.EqualFunc(f.Models, old.Models, same) && slices.EqualFunc(f.Adapters, old.Adapters, same)
}

// lenient reads fields of a JSON object one by one, so that one of an odd shape
// spoils none of the others.
type lenient map[string]json.RawMessage

func (l lenient) str(name string) string {
	var s string
	if json.Unmarshal(l[name], &s) != nil || !validName(s) {
		return ""
	}
	return s
}

// num returns a whole number ≥ 0; 0 for everything else.
func (l lenient) num(name string) int64 {
	var f float64
	if json.Unmarshal(l[name], &f) != nil || f != math.Trunc(f) || f < 0 || f > 1<<53 {
		return 0
	}
	return int64(f)
}

// amount is a num that sums do not overflow with.
func (l lenient) amount(name string) int64 { return min(l.num(name), maxCapacity) }

func (l lenient) object(name string) lenient {
	var o lenient
	if json.Unmarshal(l[name], &o) != nil {
		return nil
	}
	return o
}

func (f *Facts) addModels(body []byte) error {
	var list struct {
		Data []lenient `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return err
	}
	dropped := 0
	for _, m := range list.Data {
		info := ModelInfo{
			ID: m.str("id"), Root: m.str("root"), Parent: m.str("parent"), OwnedBy: m.str("owned_by"),
			Created: m.num("created"), MaxModelLen: m.num("max_model_len"),
		}
		switch {
		case info.ID == "":
			dropped++
		case info.Parent != "" && len(f.Adapters) < config.MaxAdapters:
			f.Adapters = append(f.Adapters, info)
		case info.Parent == "" && len(f.Models) < maxModels:
			f.Models = append(f.Models, info)
		default:
			dropped++
		}
	}
	for _, m := range f.Models {
		if m.OwnedBy == DialectSGLang || m.OwnedBy == DialectVLLM {
			f.Backend = m.OwnedBy
			break
		}
	}
	if dropped > 0 {
		f.warn("%d entries of /v1/models are not used: no usable id, or more than %d models or %d adapters", dropped, maxModels, config.MaxAdapters)
	}
	return nil
}

func (f *Facts) addServerInfo(body []byte) error {
	var l lenient
	if err := json.Unmarshal(body, &l); err != nil {
		return err
	}
	f.fingerprint = fingerprintOf(body)
	if l["vllm_config"] != nil {
		f.addVLLMInfo(l)
		return nil
	}
	if l["disaggregation_mode"] != nil || l["internal_states"] != nil || l["scheduler_info"] != nil {
		f.Backend = DialectSGLang
	}
	f.ServedName = l.str("served_model_name")
	if f.ModelPath == "" {
		f.ModelPath = l.str("model_path")
	}
	f.Mode = l.str("disaggregation_mode")
	f.Version = l.str("version")
	if p := l.num("disaggregation_bootstrap_port"); p <= 65535 {
		f.BootstrapPort = int(p)
	}
	if n := l.num("dp_size"); n <= maxDPSize {
		f.DPSize = int(n)
	} else {
		f.warn("dp_size %d is over %d and not used", n, maxDPSize)
	}
	f.MaxRunningRequests = l.amount("max_running_requests")
	f.ChunkedPrefillSize = l.amount("chunked_prefill_size")
	f.MaxPrefillTokens = l.amount("max_prefill_tokens")
	f.PageSize = l.num("page_size")
	f.MaxTotalTokens = l.object("scheduler_info").amount("max_total_num_tokens")
	_ = json.Unmarshal(l["enable_dp_attention"], &f.DPAttention) // anything else is false
	f.addStates(l)
	return nil
}

func (f *Facts) addModelInfo(body []byte) error {
	var l lenient
	if err := json.Unmarshal(body, &l); err != nil {
		return err
	}
	if p := l.str("model_path"); p != "" {
		f.ModelPath = p
	}
	return nil
}

func (f *Facts) warn(format string, args ...any) {
	if len(f.Warnings) < 16 {
		f.Warnings = append(f.Warnings, fmt.Sprintf(format, args...))
	}
}
