package engine

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/sluice-router/sluice/internal/text"
)

// Bounds of what is believed of an engine's answers.
const (
	MaxName     = 512  // bytes of a name
	MaxDPSize   = 1024 // data-parallel ranks of a worker
	MaxModels   = 16   // base models of a worker
	MaxAdapters = 4096 // LoRA adapters of a worker
	// MaxCapacity bounds amounts of tokens, blocks and requests; MaxBlockSize is in
	// tokens.
	MaxCapacity  = 1 << 40
	MaxBlockSize = 65536

	maxWarnings = 16
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

// Facts are what an engine reports about itself. Any of them may be missing: an engine
// need not have any of the routes.
type Facts struct {
	// Backend is the name of the dialect that its answers prove; empty if they do not.
	Backend string
	// Connector is the KV connector that the engine reports or that was found out;
	// empty for none.
	Connector string
	// CacheType is the type of the elements of its KV cache, as vLLM's cache_dtype.
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
	FirstRank     int // as in Loads
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
	// States has what the engine reports of each data-parallel rank, beside what it
	// reports with its load.
	States []RankCapacity

	// Tokens is what an engine that takes token ids tells of its model; nil: nothing.
	Tokens *TokenFacts

	// Fingerprint distinguishes this engine process from another one at the same
	// address, beside the other fields. Zero: unknown.
	Fingerprint uint64
	// InfoPath is the route that the fingerprint is of.
	InfoPath string

	// Missing are the information routes that the worker does not have or
	// answered with something else.
	Missing []string
	// Warnings are for the operator: what of an answer could not be used.
	Warnings []string

	// Incomplete: a route failed in a way that may pass; the facts are to be asked
	// for again.
	Incomplete bool
	// Answered: some route said anything but 404.
	Answered bool
	// InfoLost: the route that failed is the one with the bootstrap port.
	InfoLost bool
}

// TokenFacts is what an engine that takes token ids tells of its model.
type TokenFacts struct {
	Vocab int64 // a number that all its ids are below; 0: not told
	// EOS are the ids with which it ends a sequence.
	EOS []uint32
	// Sampling is the JSON of the choices that it makes behind HTTP where a client makes none;
	// empty: not told.
	Sampling string
}

// Same reports whether both tell the same.
func (t *TokenFacts) Same(other *TokenFacts) bool {
	if t == nil || other == nil {
		return t == other
	}
	return t.Vocab == other.Vocab && t.Sampling == other.Sampling && slices.Equal(t.EOS, other.EOS)
}

// RankCapacity is what a worker reports of one of its data-parallel ranks. Zero: not
// reported.
type RankCapacity struct {
	KVTokens, MaxRunning int64
}

// Names are the base models' names in the order of how sure they are: what
// /v1/models lists, else served_model_name, else the path.
func (f *Facts) Names() []string {
	var names []string
	for _, m := range f.Models {
		if !slices.Contains(names, m.ID) && len(names) < MaxModels {
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

// MaxModelLen is the context of its first model in tokens, 0 when not reported.
func (f *Facts) MaxModelLen() int64 {
	i := slices.IndexFunc(f.Models, func(m ModelInfo) bool { return m.MaxModelLen > 0 })
	if i < 0 {
		return 0
	}
	return f.Models[i].MaxModelLen
}

// SameModels reports whether both list the same models and adapters.
func (f *Facts) SameModels(old *Facts) bool {
	same := func(a, b ModelInfo) bool {
		a.Created = b.Created // some engines make it up for each answer
		return a == b
	}
	return slices.EqualFunc(f.Models, old.Models, same) && slices.EqualFunc(f.Adapters, old.Adapters, same)
}

// Warn adds a warning for the operator; there is a bound of their number.
func (f *Facts) Warn(format string, args ...any) {
	if len(f.Warnings) < maxWarnings {
		f.Warnings = append(f.Warnings, fmt.Sprintf(format, args...))
	}
}

// readModels reads an answer of /v1/models.
func (f *Facts) readModels(body []byte) error {
	var list struct {
		Data []Fields `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return err
	}
	dropped := 0
	for _, m := range list.Data {
		info := ModelInfo{
			ID: m.Str("id"), Root: m.Str("root"), Parent: m.Str("parent"), OwnedBy: m.Str("owned_by"),
			Created: m.Num("created"), MaxModelLen: m.Num("max_model_len"),
		}
		switch {
		case info.ID == "":
			dropped++
		case info.Parent != "" && len(f.Adapters) < MaxAdapters:
			f.Adapters = append(f.Adapters, info)
		case info.Parent == "" && len(f.Models) < MaxModels:
			f.Models = append(f.Models, info)
		default:
			dropped++
		}
	}
	if dropped > 0 {
		f.Warn("%d entries of /v1/models are not used: no usable id, or more than %d models or %d adapters", dropped, MaxModels, MaxAdapters)
	}
	return nil
}

// Fields are those of a JSON object. They are read one by one, so that one of an odd
// shape spoils none of the others.
type Fields map[string]json.RawMessage

// Str returns a name; empty for everything else.
func (o Fields) Str(name string) string { return nameIn(o[name]) }

// Num returns a whole number ≥ 0; 0 for everything else.
func (o Fields) Num(name string) int64 { return wholeIn(o[name]) }

// nameIn is the name that a JSON value is; empty for everything else.
func nameIn(raw []byte) string {
	s, ok := plainString(raw)
	if !ok && json.Unmarshal(raw, &s) != nil || !ValidName(s) {
		return ""
	}
	return s
}

// plainString is a string of printable ASCII without escapes, which hand-offs have with each
// request: it needs no decoder.
func plainString(raw []byte) (s string, ok bool) {
	if len(raw) < 2 || raw[0] != '"' {
		return "", false
	}
	raw = raw[1 : len(raw)-1]
	for _, c := range raw {
		if c < ' ' || c > '~' || c == '\\' || c == '"' {
			return "", false
		}
	}
	return string(raw), true
}

// wholeIn is the whole number ≥ 0 that a JSON value is; 0 for everything else.
func wholeIn(raw []byte) int64 {
	if n, err := strconv.ParseUint(string(raw), 10, 53); err == nil {
		return int64(n) // needs no decoder
	}
	var f float64
	if json.Unmarshal(raw, &f) != nil || f != math.Trunc(f) || f < 0 || f > 1<<53 {
		return 0
	}
	return int64(f)
}

// part is a number from 0 to 1; 0 for everything else.
func (o Fields) part(name string) float64 {
	var v float64
	if json.Unmarshal(o[name], &v) != nil || v < 0 {
		return 0
	}
	return min(v, 1)
}

// Amount is a Num of at most MaxCapacity, with which sums do not overflow.
func (o Fields) Amount(name string) int64 { return min(o.Num(name), MaxCapacity) }

// Object returns the object in a field; nil for everything else.
func (o Fields) Object(name string) Fields {
	var in Fields
	if json.Unmarshal(o[name], &in) != nil {
		return nil
	}
	return in
}

// ValidName reports whether s is acceptable as a name, from an engine or an operator.
func ValidName(s string) bool { return s != "" && len(s) <= MaxName && text.Printable(s) }

func grown[T any](s []T, i int) []T {
	if i < len(s) {
		return s
	}
	return append(s, make([]T, i+1-len(s))...)
}
