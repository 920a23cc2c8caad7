package events

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
)

// Source is where the events of one rank come from.
type Source struct {
	// Rank is the data-parallel rank, from 0.
	Rank int
	// Endpoint and Replay are "tcp://HOST:PORT"; Replay is empty if the engine repeats
	// nothing.
	Endpoint, Replay string
	// Topic is what the topics of the events begin with.
	Topic string
	// Pushed: the engine pushes its events over its connections for requests, and Endpoint is
	// its own URL.
	Pushed bool
}

// ErrNoSources tells that the engine answered that it publishes no events.
var ErrNoSources = errors.New("the engine publishes no KV events")

// Bounds of what engines tell about their sources.
const (
	maxAnswer = 4 << 20 // bytes
	maxRanks  = 1 << 10
)

// defaultEndpoint is where engines publish if nothing is said.
const defaultEndpoint = "tcp://*:5557"

// told is what engines tell of a publisher, and how both are configured.
type told struct {
	Enabled   *bool   `json:"enable_kv_cache_events"`
	Publisher *string `json:"publisher"`
	Endpoint  string  `json:"endpoint"`
	Replay    string  `json:"replay_endpoint"`
	Topic     string  `json:"topic"`
}

// VLLMSources reads the answer of vLLM's GET /kv_event_sources: the sources of its ranks, in
// their order. host is the worker's own host: only ports are taken from the answer, so that no
// engine makes the router connect elsewhere.
//
// Ranks that cannot be used are left out, and the error says why. It is ErrNoSources if events
// are off.
func VLLMSources(host string, answer []byte) ([]Source, error) {
	if len(answer) > maxAnswer {
		return nil, fmt.Errorf("an answer of %d bytes: at most %d are read", len(answer), maxAnswer)
	}
	var ranks map[string]json.RawMessage
	if err := json.Unmarshal(answer, &ranks); err != nil {
		return nil, err
	}
	var found []Source
	var errs []error
	for name, raw := range ranks {
		rank, err := strconv.ParseUint(name, 10, 31)
		if err != nil || rank >= maxRanks {
			errs = append(errs, fmt.Errorf("rank %.20q: not a number below %d", name, maxRanks))
			continue
		}
		var t told
		if err := json.Unmarshal(raw, &t); err != nil {
			errs = append(errs, fmt.Errorf("rank %d: %w", rank, err))
			continue
		}
		if t.Enabled != nil && !*t.Enabled || t.Publisher != nil && *t.Publisher != "zmq" {
			continue
		}
		s, err := t.source(host, int(rank), 0)
		if err != nil {
			errs = append(errs, fmt.Errorf("rank %d: %w", rank, err))
			continue
		}
		found = append(found, s)
	}
	slices.SortFunc(found, func(a, b Source) int { return cmp.Compare(a.Rank, b.Rank) })
	return result(found, errs)
}

func result(found []Source, errs []error) ([]Source, error) {
	if len(found) == 0 && len(errs) == 0 {
		return nil, ErrNoSources
	}
	return found, errors.Join(errs[:min(len(errs), 3)]...) // one rank or all: a few will do
}

// SGLangSources reads the answer of SGLang's GET /server_info, as VLLMSources does. SGLang
// tells the port of rank 0, to which others add their number.
func SGLangSources(host string, answer []byte) ([]Source, error) {
	if len(answer) > maxAnswer {
		return nil, fmt.Errorf("an answer of %d bytes: at most %d are read", len(answer), maxAnswer)
	}
	var info struct {
		Config json.RawMessage `json:"kv_events_config"`
		Events *struct {
			told
			Port  int `json:"endpoint_port_base"`
			Ranks int `json:"dp_size"`
		} `json:"kv_events"`
		Ranks int `json:"dp_size"`
	}
	if err := json.Unmarshal(answer, &info); err != nil {
		return nil, err
	}
	var t told
	if raw := info.Config; len(raw) > 0 {
		var text string
		if raw[0] == '"' && json.Unmarshal(raw, &text) == nil {
			raw = json.RawMessage(text) // the option as it was given
		}
		if len(raw) > 0 {
			if err := json.Unmarshal(raw, &t); err != nil {
				return nil, fmt.Errorf("kv_events_config: %w", err)
			}
		}
	}
	ranks := info.Ranks
	if e := info.Events; e != nil {
		t.Publisher = cmp.Or(e.Publisher, t.Publisher)
		t.Endpoint, t.Replay, t.Topic = cmp.Or(e.Endpoint, t.Endpoint), cmp.Or(e.Replay, t.Replay), cmp.Or(e.Topic, t.Topic)
		if e.Port > 0 {
			t.Endpoint = fmt.Sprintf("tcp://*:%d", e.Port)
		}
		ranks = cmp.Or(e.Ranks, ranks)
	}
	if t.Publisher == nil || *t.Publisher != "zmq" {
		return nil, ErrNoSources
	}
	if ranks < 0 || ranks > maxRanks {
		return nil, fmt.Errorf("dp_size %d: at most %d ranks are followed", ranks, maxRanks)
	}
	var found []Source
	for rank := range max(ranks, 1) {
		s, err := t.source(host, rank, rank)
		if err != nil {
			return found, fmt.Errorf("rank %d: %w", rank, err)
		}
		found = append(found, s)
	}
	return found, nil
}

// source is a source on the worker's own host, whose ports are add above the ones told.
func (t *told) source(host string, rank, add int) (Source, error) {
	s := Source{Rank: rank, Topic: t.Topic}
	if len(s.Topic) > maxTopic {
		return s, fmt.Errorf("a topic of %d bytes: at most %d are allowed", len(s.Topic), maxTopic)
	}
	_, port, err := splitEndpoint(cmp.Or(t.Endpoint, defaultEndpoint))
	if err != nil {
		return s, err
	}
	if s.Endpoint, err = joinEndpoint(host, port+add); err != nil || t.Replay == "" {
		return s, err
	}
	if _, port, err = splitEndpoint(t.Replay); err != nil {
		return s, err
	}
	s.Replay, err = joinEndpoint(host, port+add)
	return s, err
}

// ConfiguredSource is the source of a rank by the endpoints that an operator has set for its
// worker: "*" as their host means the worker's own one, host, and the ports are those of rank
// 0, to which the rank is added. replay may be empty.
func ConfiguredSource(host, endpoint, replay, topic string, rank int) (Source, error) {
	s := Source{Rank: rank, Topic: topic}
	for _, e := range []struct {
		from string
		to   *string
	}{{endpoint, &s.Endpoint}, {replay, &s.Replay}} {
		if e.from == "" && e.to == &s.Replay {
			break
		}
		at, port, err := splitEndpoint(e.from)
		if err != nil {
			return s, err
		}
		if anyHost(at) {
			at = host
		}
		if *e.to, err = joinEndpoint(at, port+rank); err != nil {
			return s, err
		}
	}
	return s, nil
}

// anyHost reports whether a publisher's host means all addresses of its machine.
func anyHost(host string) bool {
	return host == "" || host == "*" || host == "0.0.0.0" || host == "::"
}

// splitEndpoint is the host and the port of "tcp://HOST:PORT".
func splitEndpoint(endpoint string) (host string, port int, err error) {
	scheme, addr, ok := strings.Cut(endpoint, "://")
	if !ok || scheme != "tcp" {
		return "", 0, fmt.Errorf("endpoint %.100q: only tcp://HOST:PORT is supported", endpoint)
	}
	i := strings.LastIndexByte(addr, ':')
	if i < 0 {
		return "", 0, fmt.Errorf("endpoint %.100q: it has no port", endpoint)
	}
	host = strings.TrimSuffix(strings.TrimPrefix(addr[:i], "["), "]")
	if strings.ContainsAny(host, "/@ []") {
		return "", 0, fmt.Errorf("endpoint %.100q: its host is malformed", endpoint)
	}
	n, err := strconv.ParseUint(addr[i+1:], 10, 16)
	if err != nil || n == 0 {
		return "", 0, fmt.Errorf("endpoint %.100q: its port is no number from 1 to 65535", endpoint)
	}
	return host, int(n), nil
}

func joinEndpoint(host string, port int) (string, error) {
	if port > 65535 {
		return "", fmt.Errorf("port %d is over 65535", port)
	}
	return "tcp://" + net.JoinHostPort(host, strconv.Itoa(port)), nil
}
