package config

import (
	"net"
	"reflect"
	"strconv"
	"time"

	"github.com/sluice-router/sluice/admission"
)

// Config is the whole configuration of one sluice process, immutable once
// loaded. A reload makes a new one.
type Config struct {
	// File is the path of the YAML file the configuration came from, or "".
	File string `yaml:"-"`

	Server            Server            `yaml:"server" help:"What sluice listens on and what clients may ask of it."`
	Auth              Auth              `yaml:"auth" help:"Keys. Each can be given directly or as the path of a file that holds it."`
	Log               Log               `yaml:"log" help:"Logs on standard error. Prompts and keys are never logged."`
	Fleet             Fleet             `yaml:"fleet" help:"The engines as a whole."`
	Workers           []Worker          `yaml:"workers" flag:"-" reload:"true" help:"The engines that the configuration declares. Any of them may be down, and more come at run time with POST /workers and from other sources. A list given by flags replaces the environment's, and that the file's, whole. A reload puts a changed list in force, see docs/discovery.md."`
	Discovery         Discovery         `yaml:"discovery" help:"Workers that are declared elsewhere, and what is kept of those that were registered by request. docs/discovery.md explains it."`
	Kubernetes        Kubernetes        `yaml:"kubernetes" help:"Workers that are pods of a Kubernetes cluster. docs/kubernetes.md has the rights that it needs, and examples."`
	Routing           Routing           `yaml:"routing" help:"How a rank is chosen among those that have room."`
	KV                KV                `yaml:"kv" help:"What is known of the engines' KV caches."`
	Text              Text              `yaml:"text" help:"How text becomes tokens: for engines that take token ids (workers by grpc://), and to count the prompts of others. docs/grpc.md explains it."`
	Admission         Admission         `yaml:"admission" help:"The gate in front of prefill: bounded requests in prefill, policy classes, and what is refused at once."`
	ConditionalDisagg ConditionalDisagg `yaml:"conditional_disagg" help:"Conditional disaggregation: some requests bypass the prefill workers and run whole on a vLLM decode worker. They wait in their class like others, with decode workers as candidates only."`
	Health            Health            `yaml:"health" help:"Active health checks."`
	Retry             Retry             `yaml:"retry" help:"Attempts after one that failed before any byte reached the client."`
	CircuitBreaker    CircuitBreaker    `yaml:"circuit_breaker" help:"A rank that keeps failing is left alone for a while."`
	Cluster           Cluster           `yaml:"cluster" help:"Several routers behind one gate: the limits, queues and classes hold for all of them together. docs/cluster.md explains it."`
	Timeouts          Timeouts          `yaml:"timeouts" help:"Time limits of a request and of its connections. docs/timeouts.md lists them with all others, those that are not options too."`

	// Generation orders configurations over the members of a cluster: the highest is in
	// force. Zero: not given.
	Generation int64 `yaml:"config_generation" range:"0:" default:"0" reload:"true" help:"Number of this configuration among those that the routers of a cluster are started with: the limits, classes and policies of the highest are in force for all of them. Raise it with each change; a chart may give the revision of its release. 0: not given; then the last that was loaded is in force."`

	// Classes are the policy classes: those of the class file or of the
	// admission group, else the one that router_queue_threshold makes; nil with
	// none of these.
	Classes *admission.Classes `yaml:"-"`

	// KeyNames are the names of Auth.APIKeys, in their order, where those come from a
	// file; "" for a key without a name. It may be shorter than the keys.
	KeyNames []string `yaml:"-"`

	origins map[string]Origin
	// classes is where Classes stand: the origin of each of their paths.
	classes map[string]Origin
}

// Server says what sluice listens on and bounds what clients send.
type Server struct {
	Host                string        `yaml:"host" default:"0.0.0.0" help:"Address or host name on which to serve clients. Use :: for IPv4 and IPv6 together, 127.0.0.1 for this machine only."`
	Port                int           `yaml:"port" default:"30000" range:"0:65535" help:"Port on which to serve clients; 0: any free port."`
	PrometheusHost      string        `yaml:"prometheus_host" default:"0.0.0.0" help:"Address or host name on which to serve /metrics."`
	PrometheusPort      int           `yaml:"prometheus_port" default:"29000" range:"0:65535" help:"Port on which to serve /metrics; 0: any free port."`
	MaxPayloadSize      int64         `yaml:"max_payload_size" default:"512MiB" unit:"bytes" range:"1:" help:"Maximum size of a request body; larger ones are answered with 413. The default leaves room for prompts with images; max_buffered_bytes limits all bodies together."`
	MaxBufferedBytes    int64         `yaml:"max_buffered_bytes" default:"2GiB" unit:"bytes" range:"1:" help:"Most bytes of memory that requests hold at one time, all together; more is answered with 503 (buffer_full). The process holds that, kv_index_memory, 64 MiB, and 32 KiB for each open connection."`
	SSEKeepalive        time.Duration `yaml:"sse_keepalive_secs" default:"15" unit:"secs" help:"An event stream that has been silent for this long gets a comment line (on /v1/messages a ping event), so that proxies in between do not close it; 0: never."`
	HTTPStack           string        `yaml:"http_stack" choices:"own|net" default:"own" help:"Implementation of HTTP for clients and engines. own: sluice's own. net: that of Go's net/http, which costs more CPU, as a way out if the own one has a fault. docs/http.md lists the differences."`
	UntranslatableTools string        `yaml:"untranslatable_tools" choices:"drop|refuse" default:"drop" help:"What to do with tools on /v1/messages and /v1/responses that cannot be translated for SGLang pairs (everything but the client's own functions): drop leaves them out and says so in X-Sluice-Note and in the access log; refuse answers 400."`
	TrustUpstream       bool          `yaml:"trust_upstream_transfer_params" help:"Let clients set kv_transfer_params, ec_transfer_params, transfer_id, data-parallel ranks and the bootstrap fields, which are refused otherwise: for a sluice that serves another router, which has paired prefill and decode itself. Clients could then read each other's KV cache, so only trusted ones may reach it. Not with pd_disaggregation, where sluice sets these fields."`
	DrainTimeout        time.Duration `yaml:"drain_timeout" default:"180" unit:"secs" alias:"shutdown-grace-period-secs" help:"After SIGTERM, how long waiting and running requests may continue before they are ended."`
	PreDrainWait        time.Duration `yaml:"pre_drain_wait" default:"5" unit:"secs" help:"After SIGTERM or SIGINT, how long to accept requests while already reporting not ready. Behind a load balancer or in Kubernetes, use a little more than it needs to notice, say 10; without either, 0."`
}

// The values of Server.HTTPStack.
const (
	HTTPStackOwn = "own" // packages http1 and upstream
	HTTPStackNet = "net" // package net/http
)

// Auth holds the keys sluice asks for and the one it presents.
type Auth struct {
	APIKeys          []Secret `yaml:"api_key" reload:"true" help:"Keys clients must present, any one of them; none: clients are not asked. Never passed on to engines. Give two while changing from one to the other: the flag twice, the variable with a space between, the file a list."`
	APIKeyFile       string   `yaml:"api_key_file" reload:"true" fileof:"api_key" help:"File with the clients' keys, one a line: KEY, or NAME:KEY, whose name (1 to 64 of A-Z a-z 0-9 _ . -) the access log and sluice_key_requests_total tell. A line is NAME:KEY if what stands before its first colon can be a name; write :KEY for a key without a name that has a colon in it."`
	AdminAPIKey      Secret   `yaml:"admin_api_key" reload:"true" help:"Key for routes that change the fleet or the limits. None: those routes answer on the loopback interface only."`
	AdminAPIKeyFile  string   `yaml:"admin_api_key_file" reload:"true" fileof:"admin_api_key" help:"File with the admin key."`
	WorkerAPIKey     Secret   `yaml:"worker_api_key" help:"Key presented to engines that have none of their own (workers[].api_key)."`
	WorkerAPIKeyFile string   `yaml:"worker_api_key_file" fileof:"worker_api_key" help:"File with the key presented to engines."`
}

// Log says what is logged and in which form.
type Log struct {
	Level  string `yaml:"log_level" default:"info" choices:"debug|info|warn|error" help:"Lowest level that is logged."`
	Access string `yaml:"access_log" default:"all" choices:"all|failures|off" help:"Which requests are logged, one line each. failures: only those that sluice or an engine failed or that were refused for lack of capacity, which are logged at warn; other requests are logged at info, probes and reads of /workers and /admission at debug."`
	// AccessPrefixHashes and AccessHashKey are for replays of the access log.
	AccessPrefixHashes bool   `yaml:"access_log_prefix_hashes" default:"false" help:"Log of each prompt one hash for every 2,048 bytes, which stands for these and all before them, so that the log tells which prompts begin alike and can be replayed (sluice replay). Nothing of the text can be read from them, or tested by who does not have the key."`
	AccessHashKey      Secret `yaml:"access_log_hash_key" help:"Secret that those hashes are made with, 16 bytes or more, the same for all routers whose logs are put together. Without it each start takes a random one."`
	AccessHashKeyFile  string `yaml:"access_log_hash_key_file" fileof:"access_log_hash_key" help:"File with that secret."`

	JSON bool `yaml:"log_json" default:"false" help:"Log one JSON object per line instead of text."`
}

// Fleet holds what is true of all engines together.
type Fleet struct {
	PDDisaggregation          bool          `yaml:"pd_disaggregation" default:"false" help:"Prefill and decode run on separate workers. Without it every worker runs whole requests."`
	DPAware                   bool          `yaml:"dp_aware" default:"false" help:"Schedule each data-parallel rank of a worker separately. Every limit is then per rank."`
	ModelID                   string        `yaml:"model_id" help:"Model name of workers that are given none of their own (workers[].model_id); empty: what each worker reports."`
	ModelAliases              ModelAliases  `yaml:"model_alias" reload:"true" help:"Other names for models: requests for ALIAS go to MODEL, which may be a LoRA adapter, and GET /v1/models lists both. A model that a worker lists under the name of an alias cannot be reached by that name. The flag is ALIAS=MODEL and repeatable, the variable has a space between several, the file a mapping of aliases to models."`
	WorkerWarmup              time.Duration `yaml:"worker_warmup_secs" default:"60" unit:"secs" range:"0:" help:"How long a worker warms up that comes to a running router or comes back (it was unhealthy, hung, drained, not ready or restarted, or its circuit breaker was open): it gets only worker_warmup_share of the requests meanwhile, if others have room. Workers that come together with the first, as at the start of the router, do not warm up. 0: no worker does."`
	WorkerWarmupShare         float64       `yaml:"worker_warmup_share" default:"0.25" range:"0.001:1" help:"Share of a worker that warms up: how many requests it gets for each that another worker of its role and model gets. It is a preference, under every policy: no request waits because of it."`
	NoWorkerWait              time.Duration `yaml:"no_worker_wait_secs" default:"0" unit:"secs" reload:"true" help:"How long a request may wait while no worker can serve it; 0: it is answered with 503 at once."`
	KVHandOffMissing          string        `yaml:"kv_handoff_missing" default:"recompute" choices:"recompute|fail" help:"vLLM only: what to do with a request whose prefill worker returns no KV cache to hand over. recompute: decode computes the prompt again. fail: answer 502. Both are counted."`
	KVHandOffMaxAge           time.Duration `yaml:"kv_handoff_max_age_secs" default:"20" unit:"secs" range:"0.001:" help:"vLLM only: maximum age of the KV cache that prefill handed over; older cache is not used. Keep it well under the engine's own lease of 30 s (kv_lease_duration), after which an engine answers with wrong text and status 200."`
	KVTransferTopology        string        `yaml:"kv_transfer_topology" default:"off" choices:"off|required|preferred" help:"Whether the prefill and the decode worker of a request must be in the same domain (workers[].topology_domain). off: domains are ignored. required: always. preferred: if possible."`
	KVTransferPreferredWeight int           `yaml:"kv_transfer_preferred_weight" default:"1" range:"1:1000000" onlywith:"preferred" help:"Weight of a common domain with kv_transfer_topology: preferred, compared with the weights of the labels that a request prefers."`
	PairLabel                 LabelKey      `yaml:"pair_label" onlywith:"pd" help:"Name of a label of workers: a prefill and a decode worker are paired only if they have the same value of it. Workers without the label are paired with each other. With the label in which a rollout differs (a revision, a group), no request is ever split between two generations. Pods have it as a label of the pod."`
}

// Kubernetes says which pods are workers. The names and the defaults are those of the
// SGLang model gateway.
type Kubernetes struct {
	Enabled         bool          `yaml:"service_discovery" default:"false" help:"Watch a Kubernetes cluster: pods that a selector matches are workers while they run. Workers of other sources stay as they are."`
	Selector        LabelSelector `yaml:"selector" onlywith:"kubernetes" help:"Labels of the pods that are workers: app=x,tier in (a, b),!canary as kubectl takes it, or pairs with a space between (app=x tier=a). Not with pd_disaggregation."`
	PrefillSelector LabelSelector `yaml:"prefill_selector" onlywith:"kubernetes" help:"Labels of the pods that are prefill workers. With pd_disaggregation."`
	DecodeSelector  LabelSelector `yaml:"decode_selector" onlywith:"kubernetes" help:"Labels of the pods that are decode workers. With pd_disaggregation. A pod that both selectors match is a prefill worker."`
	Port            PodPort       `yaml:"service_discovery_port" default:"80" onlywith:"kubernetes" help:"Port of the engine in each pod: a number, the name of a port of its containers, or label:KEY or annotation:KEY of the pod. The annotation smg.ai/worker-ports of a pod (30000, or 30000,30001 for a pod with several engines) wins over it."`
	Scheme          string        `yaml:"service_discovery_scheme" default:"http" choices:"http|grpc" onlywith:"kubernetes" help:"How the engines of pods are spoken to: http, or grpc for engines that take token ids by gRPC."`
	// Namespace is empty for all namespaces.
	Namespace               string      `yaml:"service_discovery_namespace" onlywith:"kubernetes" help:"Namespace of the pods; empty: all namespaces, which needs a ClusterRole."`
	ModelIDFrom             PodMetadata `yaml:"model_id_from" onlywith:"kubernetes" must:"namespace, label:KEY or annotation:KEY" help:"Where a pod says its model: namespace, label:KEY or annotation:KEY. Without it, and in a pod without that, the model is fleet.model_id, else what the engine reports."`
	BootstrapPortAnnotation LabelKey    `yaml:"bootstrap_port_annotation" default:"sglang.ai/bootstrap-port" onlywith:"kubernetes" help:"Annotation of prefill pods with the port at which decode finds them, or none; for a pod with several engines one for all, or a list in the order of its ports."`
	KVConnectorAnnotation   LabelKey    `yaml:"kv_connector_annotation" default:"smg.ai/kv-connector" onlywith:"kubernetes" help:"Annotation of vLLM pods with their KV connector: a class of vLLM (NixlConnector), or a value of workers[].kv_connector."`
	KVEngineIDAnnotation    LabelKey    `yaml:"kv_engine_id_annotation" default:"smg.ai/kv-engine-id" onlywith:"kubernetes" help:"Annotation of vLLM prefill pods with the id of the KV engine; for a pod with several engines a list in the order of its ports. Another id means another engine, of which nothing is known. It is not needed: sluice asks the engines for their ids."`
	EndpointSlices          bool        `yaml:"service_discovery_endpoint_slices" default:"false" onlywith:"kubernetes" help:"Watch EndpointSlices too, by the same selectors, which then are of labels that a Service passes on to its slices: for engines outside of the cluster, and pods whose own labels no selector matches. Where a selector matches the pod itself, the pod decides, and slices say nothing."`
	Kubeconfig              string      `yaml:"kubeconfig" onlywith:"kubernetes" help:"File with the address of the API server and the credentials. Without it: the file that KUBECONFIG names, else the service account of the pod in which sluice runs."`
}

// The values of Discovery.Provider.
const (
	DiscoveryNone       = "none"
	DiscoveryFile       = "file"
	DiscoveryKubernetes = "kubernetes" // Kubernetes.Enabled
)

// Discovery says where workers are declared, beside the configuration.
type Discovery struct {
	Provider      string        `yaml:"discovery_provider" choices:"none|file|kubernetes" default:"none" help:"file: workers are those of discovery_file too. kubernetes: the same as service_discovery. none: neither, unless discovery_file or service_discovery is set. Names in DNS stand beside it."`
	File          string        `yaml:"discovery_file" onlywith:"discovery_file" help:"File with a list of workers, YAML or JSON: as workers stand in the configuration, or a manifest of the SGLang model gateway. It is read again all the time."`
	CheckInterval time.Duration `yaml:"discovery_check_interval_secs" default:"5" unit:"secs" range:"0.05:86400" onlywith:"discovery_file" help:"Time between two looks at discovery_file."`
	WorkersState  string        `yaml:"workers_state" help:"File in which workers that were registered by request are kept over a restart, with their keys, readable by its owner only. Without it they are gone after a restart."`
	SourceHold    time.Duration `yaml:"source_hold_secs" default:"60" unit:"secs" help:"A source that declares no worker any more, or drops more than half of more than 3 at once, is not believed at once: the drop takes effect when it was read three times, or after this time. Workers that fail their health checks go at once. Workers that are replaced stay until the new ones are ready, for this time at most. 0: every drop takes effect at once."`
	DNSNames      []DNSName     `yaml:"discovery_dns_names" help:"Names in DNS whose addresses are workers, each as NAME:PORT with settings after commas: engines.internal:30000,worker_type=prefill,labels.zone=a. Settings are scheme (http, https, grpc or grpcs), family (auto: IPv4 if there are such addresses, else IPv6; ipv4; ipv6; both) and those of workers that are single values; labels.NAME sets a label. A flag for each name; in the variable spaces between them, in the file a list."`
	DNSServer     string        `yaml:"discovery_dns_server" onlywith:"discovery_dns" help:"Name server, as HOST or HOST:PORT, in place of those of /etc/resolv.conf."`
	DNSInterval   time.Duration `yaml:"discovery_dns_min_interval_secs" default:"5" unit:"secs" range:"0.05:300" onlywith:"discovery_dns" help:"Shortest time between two questions for a name. Else it is asked again when the shortest time to live in its answer is over, and every 5 minutes at least."`
}

// Policy names a way to choose among ranks with room.
type Policy string

// The policies of this version.
const (
	PolicyRandom            Policy = "random"
	PolicyRoundRobin        Policy = "round_robin"
	PolicyPowerOfTwo        Policy = "power_of_two"
	PolicyLeastLoad         Policy = "least_load"
	PolicyConsistentHashing Policy = "consistent_hashing"
	PolicyCacheAware        Policy = "cache_aware"
	PolicyPrefixHash        Policy = "prefix_hash"
)

// Routing says how ranks are chosen. PrefillPolicy and DecodePolicy are filled
// in from Policy when they are not set, so readers need no fallback.
type Routing struct {
	Policy        Policy `yaml:"policy" default:"cache_aware" choices:"random|round_robin|power_of_two|least_load|consistent_hashing|cache_aware|prefix_hash" help:"Load-balancing policy for both phases, and for workers that run whole requests."`
	PrefillPolicy Policy `yaml:"prefill_policy" choices:"random|round_robin|power_of_two|least_load|consistent_hashing|cache_aware|prefix_hash" defaultdoc:"policy" onlywith:"pd" help:"Load-balancing policy for prefill workers."`
	DecodePolicy  Policy `yaml:"decode_policy" choices:"random|round_robin|power_of_two|least_load|consistent_hashing|cache_aware|prefix_hash" defaultdoc:"policy" onlywith:"pd" help:"Load-balancing policy for decode workers."`

	CacheWeight   float64 `yaml:"cache_weight" default:"8" range:"0:1000" help:"cache_aware: how many tokens that wait for a worker count as much as one token of the prompt that the worker has in its KV cache. 0: the caches do not count. 1: the least time to the first token of this request, at the expense of later ones."`
	CacheMinMatch float64 `yaml:"cache_min_match" default:"0.1" range:"0:1" alias:"cache-threshold" help:"cache_aware: a worker that has less than this fraction of the prompt in its KV cache counts as one that has nothing of it."`

	PrefixTokenCount     int     `yaml:"prefix_token_count" default:"256" range:"1:131072" help:"prefix_hash: how many tokens of the beginning of a prompt make its key, at 4 bytes a token."`
	PrefixHashLoadFactor float64 `yaml:"prefix_hash_load_factor" default:"1.25" range:"0:1000" help:"prefix_hash: a worker is passed over while the tokens booked on it are more than this many times the mean, and its requests above the mean more than prefix_hash_balance_abs_threshold."`
	PrefixHashBalanceAbs int     `yaml:"prefix_hash_balance_abs_threshold" default:"10" range:"0:1000000" help:"prefix_hash: see prefix_hash_load_factor."`
}

// KV says what is kept of the engines' KV caches.
type KV struct {
	IndexMemory  int64         `yaml:"kv_index_memory" default:"512MiB" unit:"bytes" range:"1048576:" help:"Most bytes of memory for the index of which worker holds the beginnings of which prompts in its KV cache; what was used least recently goes first."`
	Events       string        `yaml:"kv_events" choices:"auto|off" default:"auto" help:"auto: follow the events of the KV cache of each worker whose engine says that it publishes them (vLLM and SGLang with --kv-events-config), over ZMQ at the worker's own host, without encryption. off: none; what a worker holds is what it was sent."`
	EventsPort   int           `yaml:"kv_events_port" range:"0:65535" default:"0" help:"Port of the KV events of workers whose engines cannot be asked where they publish them; that of data-parallel rank N is N higher. 0: such workers are not followed. A worker's label kv_events_port wins over it."`
	ReplayPort   int           `yaml:"kv_events_replay_port" range:"0:65535" default:"0" help:"Port at which such workers repeat events that were missed (replay_endpoint of their --kv-events-config), counted as kv_events_port is; 0: none do, and a worker of which events were missed counts as empty. A worker's label kv_events_replay_port wins over it."`
	EventsSilent time.Duration `yaml:"kv_events_silent_secs" default:"10" unit:"secs" range:"0.05:3600" help:"For how long no KV event may come from a worker that has computed a prompt which its cache did not hold; then its events count no more until one comes. This is noticed of engines that report cached tokens (vLLM with --enable-prompt-tokens-details, SGLang with --enable-cache-report)."`
}

// The values of KV.Events.
const (
	KVEventsAuto = "auto"
	KVEventsOff  = "off"
)

// Text says how text becomes tokens.
type Text struct {
	TokenizerPaths []TokenizerPath `yaml:"tokenizer_path" help:"Where the files of a model's text are: a directory with tokenizer.json, and for chat tokenizer_config.json and the chat template, as on Hugging Face, or tokenizer.json itself. PATH is for every model, MODEL=PATH for one. An engine that takes token ids is then not asked for its own; of the model of other engines prompts are counted instead of estimated. A flag for each path; in the variable spaces between them, in the file a list."`
	RendererURL    string          `yaml:"renderer_url" help:"Base URL, http or https, of a server that makes token ids of chats (vllm launch render): for engines that take token ids, where their model's template cannot be rendered here, where the engine makes other tokens than the files of its tokenizer, and for nothing else. Without it such chats are refused."`
	RendererLimit  time.Duration   `yaml:"renderer_timeout_secs" default:"30" unit:"secs" range:"0.001:3600" help:"Timeout of one request to renderer_url."`
	CountPrompts   string          `yaml:"count_prompt_tokens" choices:"auto|never" default:"auto" help:"auto: the prompts of models whose tokenizer is here (tokenizer_path) are counted for engines that take text too, and what these tell of their KV caches is looked up by token ids. Prompts that cannot be counted are estimated. never: they are estimated, and only engines that take token ids have their text tokenized."`
	Workers        int             `yaml:"tokenizer_workers" default:"0" range:"0:1024" help:"Most requests whose text becomes tokens at one time; 0: as many as there are cores but one, and one at least."`
	QueueMemory    int64           `yaml:"tokenizer_queue_memory" default:"256MiB" unit:"bytes" range:"1048576:" help:"Most bytes of text that wait to become tokens or are made into them; more is answered with 503 (buffer_full). A client may have up to four times what is left of it. The work itself, of up to 60 bytes for each byte of text, has as much again: long texts for which that has no room wait."`
}

// The values of Text.CountPrompts.
const (
	CountAuto  = "auto"
	CountNever = "never"
)

// Admission sets the gate. The names, the defaults and what is refused are those
// of the per-worker prefill slots of the SGLang model gateway and of the policy
// classes of Dynamo's router.
//
// The keys of a class file can stand in this group as well; they make
// Config.Classes.
type Admission struct {
	// PrefillMaxInflight is -1 when admission is off, else positive.
	PrefillMaxInflight int `yaml:"prefill_max_inflight_requests_per_worker" default:"-1" reload:"true" must:"a whole number: the most requests in prefill on one worker, or -1 for no limit" help:"Maximum number of requests in prefill on one worker (with dp_aware: one rank); further requests wait. Zero or negative: no limit, and no admission control in front of prefill."`
	// PrefillQueueSize is 0 to refuse at once instead of waiting.
	PrefillQueueSize int `yaml:"prefill_queue_size" default:"100" reload:"true" range:"0:" must:"a whole number, not negative: the most requests that wait, or 0 to refuse at once" onlywith:"admission" help:"Maximum number of waiting requests, over all workers; further requests are answered with 429 at once. 0: no request waits. Only with a positive prefill_max_inflight_requests_per_worker."`
	// PrefillQueueTimeout is positive unless PrefillQueueSize is 0.
	PrefillQueueTimeout time.Duration `yaml:"prefill_queue_timeout_secs" default:"60" reload:"true" unit:"secs" whole:"true" must:"a whole number of seconds, not negative: the longest wait of one request" onlywith:"admission" help:"Maximum total waiting time of a request; after that it is answered with 429. Only with a positive prefill_max_inflight_requests_per_worker."`
	// PriorityScheduler exists to be refused with an explanation.
	PriorityScheduler bool `yaml:"priority_scheduler_enabled" default:"false" onlywith:"never" help:"Not supported and always refused: use request classes instead."`

	// RouterPolicyConfig is the path of the class file, or "".
	RouterPolicyConfig   string          `yaml:"router_policy_config" reload:"true" help:"Class file, YAML or JSON. Its contents can be written in this group instead."`
	RouterQueueThreshold *float64        `yaml:"router_queue_threshold" range:"0:" reload:"true" help:"Without a class file: requests wait while every prefill worker has more than this fraction of its max_num_batched_tokens in prefill. It may exceed 1. This creates one class, named default, whose order is router_queue_policy."`
	RouterQueuePolicy    admission.Order `yaml:"router_queue_policy" choices:"fcfs|wspt|lcfs" default:"fcfs" reload:"true" onlywith:"threshold" help:"Order of the waiting requests in that class, or of those that wait for prefill slots when there are no classes."`
	AllowLCFS            bool            `yaml:"allow_lcfs" default:"false" reload:"true" help:"Allow the order lcfs, which serves the latest arrival first, so that the earliest waits longest. For experiments."`
	// MaxWaiting, MaxWaitingBytes and MaxWait are in force with classes and
	// without prefill slots.
	MaxWaiting      int           `yaml:"max_waiting" default:"10000" range:"0:" reload:"true" onlywith:"classes" help:"Maximum number of waiting requests, over all classes; further requests are answered with 429 (queue_full). Only with classes, and only without prefill_max_inflight_requests_per_worker (prefill_queue_size is the limit then)."`
	MaxWaitingBytes int64         `yaml:"max_waiting_bytes" default:"1GiB" unit:"bytes" range:"0:" reload:"true" onlywith:"classes" help:"Maximum size of the bodies of all waiting requests together. Applies where max_waiting does."`
	MaxWait         time.Duration `yaml:"max_wait_secs" default:"60" unit:"secs" range:"0.001:" reload:"true" onlywith:"classes" help:"Maximum total waiting time of a request; after that it is answered with 429 (queue_timeout). Applies where max_waiting does; otherwise prefill_queue_timeout_secs is the limit. A class may have a shorter one."`
	QueueOrder      QueueOrder    `yaml:"queue_order" choices:"auto|strict|lanes" default:"auto" help:"strict: one queue; a blocked request at its head blocks all requests behind it. lanes: one queue for each class and set of eligible workers, so that a blocked request delays only those that need the same workers. auto: lanes with classes, else strict."`
	RefuseEarly     RefuseEarly   `yaml:"refuse_early" choices:"auto|off" default:"auto" reload:"true" help:"auto: with classes, a request is refused when it comes if it would wait more than 1.5 times as long as its deadline allows, by at least 20 admissions of its class in the last 30 seconds; it gets the code that it would have got at the deadline, with predicted: true. off: it waits until then."`
	StarvationGuard time.Duration `yaml:"starvation_guard_secs" default:"5" unit:"secs" reload:"true" help:"When the request at the head of a queue has been overtaken by others for this long, a worker is reserved for it; 0: never."`

	// What Lookahead makes of it is in force.
	AffinityLookahead int           `yaml:"affinity_lookahead" default:"0" range:"0:256" reload:"true" help:"Late binding: how many of the first waiting requests of a class are looked at for each one that starts; the one that has most of its prompt cached on the worker that it would be given goes first. 1: the first one starts. 0: 32 with queue_order lanes and cache_aware for prefill (or whole requests), else 1."`
	AffinityMaxPasses int           `yaml:"affinity_max_passes" default:"8" range:"0:250" reload:"true" help:"How many times a waiting request is passed over at most by later ones that have more in the cache of the worker."`
	AffinityWait      time.Duration `yaml:"affinity_wait_secs" default:"3" unit:"secs" range:"0:" reload:"true" help:"With late binding: how long a waiting request, half of whose prompt is cached on a worker that has no room, declines other workers, in all. 0: it takes what there is."`

	AssumedMaxRequests  int           `yaml:"assumed_max_requests" default:"64" range:"1:1000000" help:"When a class needs a capacity of a worker that is not known, the worker has room while it runs fewer requests than its max_running_requests, or than this number if that is not known either."`
	OverloadStatus      int           `yaml:"overload_status" choices:"429|529" default:"429" help:"Status of requests that are refused because of a class limit, a deadline or a reject threshold."`
	TrackOutputBlocks   bool          `yaml:"track_output_blocks" default:"false" alias:"router-track-output-blocks" help:"Book KV blocks for generated tokens too, as they are generated."`
	ReserveOutputTokens OutputReserve `yaml:"reserve_output_tokens" default:"auto" help:"Output tokens for which KV blocks are booked before a request starts, in addition to its prompt, for each leg. auto: the smaller of the request's max_tokens and the 80th percentile of the output lengths of its model (256 until 50 answers are known), at most reserve_output_cap; blocks for output beyond that are booked as it grows. 0: none."`
	ReserveOutputCap    int           `yaml:"reserve_output_cap" default:"2048" range:"1:16777216" help:"Maximum number of output tokens that reserve_output_tokens: auto books before a request starts."`
	ClientQueueMin      time.Duration `yaml:"client_max_queue_min_ms" default:"0" unit:"ms" help:"Lower limit of the maximum waiting time that a client may set with the header x-sluice-max-queue-ms; smaller values are raised to it."`
	ClientQueueMax      time.Duration `yaml:"client_max_queue_max_ms" default:"0" unit:"ms" help:"Upper limit of that time; larger values are reduced to it. 0: no upper limit."`

	// The thresholds of RejectThresholds.
	ActiveDecodeBlocks      *float64 `yaml:"active_decode_blocks_threshold" range:"0:1" reload:"true" help:"A decode worker that uses more than this fraction of its KV blocks gets no further requests; a request that no worker may take because of this is refused at once (all_workers_overloaded)."`
	ActivePrefillTokens     *int64   `yaml:"active_prefill_tokens_threshold" range:"0:" reload:"true" help:"The same for prefill workers with more than this number of tokens in prefill."`
	ActivePrefillTokensFrac *float64 `yaml:"active_prefill_tokens_threshold_frac" range:"0:" reload:"true" help:"The same for prefill workers with more than this fraction of their max_num_batched_tokens in prefill. It may exceed 1."`

	// What an engine may not report to reach.
	OverloadWaiting *int64   `yaml:"worker_overload_waiting_requests" range:"1:" reload:"true" help:"A worker (with dp_aware: a data-parallel rank of it) whose engine reports so many waiting requests or more gets no further requests until they are less than 80 % of that. Requests that no worker may take because of this wait. Needs load_monitor_interval."`
	OverloadUsage   *float64 `yaml:"worker_overload_token_usage" range:"0.001:1" reload:"true" alias:"overload-token-usage-threshold" help:"The same for an engine that reports this fraction of its KV cache in use, or more."`
}

// Enabled reports whether requests in prefill are bounded by slots.
func (a Admission) Enabled() bool { return a.PrefillMaxInflight > 0 }

// RejectThresholds are the router-wide limits beyond which a request is refused
// at once.
func (a Admission) RejectThresholds() admission.RejectThresholds {
	return admission.RejectThresholds{
		ActiveDecodeBlocks: a.ActiveDecodeBlocks, ActivePrefillTokens: a.ActivePrefillTokens,
		ActivePrefillTokensFrac: a.ActivePrefillTokensFrac,
	}
}

// RefuseEarly says whether requests are refused for a wait that is not over.
type RefuseEarly string

// The choices.
const (
	RefuseEarlyAuto RefuseEarly = "auto"
	RefuseEarlyOff  RefuseEarly = "off"
)

// QueueOrder says what a blocked request holds up.
type QueueOrder string

// The queue orders. QueueAuto is QueueLanes with classes, else QueueStrict.
const (
	QueueAuto   QueueOrder = "auto"
	QueueStrict QueueOrder = "strict"
	QueueLanes  QueueOrder = "lanes"
)

// ConditionalDisagg says which requests skip the prefill pool. The names and
// defaults are those of Dynamo's conditional disaggregation.
type ConditionalDisagg struct {
	Enabled     bool              `yaml:"conditional_disagg_enabled" default:"false" alias:"router-conditional-disagg" help:"Run some requests whole on a decode worker, without a prefill worker (conditional disaggregation). Needs pd_disaggregation."`
	Policy      ConditionalPolicy `yaml:"conditional_disagg_policy" default:"isl_bounding" choices:"isl_bounding|prefill_load|isl_or_load" onlywith:"conditional" help:"Which requests run without a prefill worker. isl_bounding: those of whose prompt the decode worker that holds the most has all but few tokens cached, by both thresholds below. prefill_load: those whose prefill worker is busy. isl_or_load: either."`
	EffISL      int               `yaml:"conditional_disagg_eff_isl_threshold" default:"2048" range:"0:" onlywith:"conditional" help:"isl_bounding: fewer uncached prompt tokens than this on the decode worker."`
	EffISLRatio float64           `yaml:"conditional_disagg_eff_isl_ratio_threshold" default:"0.7" range:"0:1" onlywith:"conditional" help:"isl_bounding: also, a smaller uncached fraction of the prompt than this."`
	// PrefillBusy is that of Admission.RouterQueueThreshold where it is not set.
	PrefillBusy *float64 `yaml:"conditional_disagg_prefill_busy_threshold" range:"0:" defaultdoc:"admission.router_queue_threshold" onlywith:"conditional" help:"prefill_load: a prefill worker is busy when it has more than this fraction of its max_num_batched_tokens in prefill."`
	DecodeBusy  *float64 `yaml:"conditional_disagg_decode_busy_threshold" range:"0:1" onlywith:"conditional" help:"No request skips prefill for a decode worker that would then use more than this fraction of its KV blocks, or whose capacity is not known."`
}

// ConditionalPolicy is a rule for which requests skip the prefill pool.
type ConditionalPolicy string

// The rules.
const (
	ConditionalISL         ConditionalPolicy = "isl_bounding"
	ConditionalPrefillLoad ConditionalPolicy = "prefill_load"
	ConditionalISLOrLoad   ConditionalPolicy = "isl_or_load"
)

// Health sets the active health checks.
type Health struct {
	Disabled         bool          `yaml:"disable_health_check" default:"false" help:"Disable health checks: every worker counts as healthy, and wedged schedulers are not looked for."`
	Endpoint         string        `yaml:"health_check_endpoint" default:"/health" help:"Path of the health check request."`
	Interval         time.Duration `yaml:"health_check_interval_secs" default:"5" unit:"secs" range:"0.01:" help:"Time between two health checks of a worker. The SGLang model gateway's default is 60, which leaves a dead worker in use for three minutes."`
	Timeout          time.Duration `yaml:"health_check_timeout_secs" default:"5" unit:"secs" range:"0.01:" help:"Timeout of a health check."`
	FailureThreshold int           `yaml:"health_failure_threshold" default:"3" range:"1:1000" help:"Number of consecutive failed checks after which a worker is unhealthy."`
	SuccessThreshold int           `yaml:"health_success_threshold" default:"2" range:"1:1000" help:"Number of consecutive successful checks after which it is healthy again."`
	BusyGrace        time.Duration `yaml:"worker_busy_grace_secs" default:"120" unit:"secs" range:"0:" help:"How long a worker that has requests but sends no bytes may fail its checks before it is unhealthy, as long as it answers a route that needs no scheduler. It is suspect meanwhile. 0: no grace period."`
	Wedge            time.Duration `yaml:"worker_wedge_secs" default:"3" unit:"secs" range:"0:" help:"How long a rank with requests under way may be without any progress, beside the time that its booked prompts need, before it is suspect and its scheduler is probed. If that shows no progress either, the rank is wedged: it gets no requests, and those that it has not begun to answer move to other workers. 0: wedged schedulers are not looked for."`
	LoadMonitor      time.Duration `yaml:"load_monitor_interval" default:"5" unit:"secs" range:"0:86400" help:"Seconds between two readings of the load that a worker's engine reports: requests that run and wait, KV cache in use. What it reports beyond the bookings counts against the decode fractions of classes; an answer older than three intervals counts no more. In large fleets idle workers are read less often, unless something is decided by it. 0: the load is only shown, as read with the health checks. The SGLang model gateway's default is 10."`
}

// Retry sets the further attempts after a failure.
type Retry struct {
	Disabled          bool          `yaml:"disable_retries" default:"false" help:"Make one attempt only."`
	MaxRetries        int           `yaml:"retry_max_retries" default:"5" range:"0:100" help:"Maximum number of attempts after the first."`
	InitialBackoff    time.Duration `yaml:"retry_initial_backoff_ms" default:"50" unit:"ms" help:"Pause before the second attempt."`
	MaxBackoff        time.Duration `yaml:"retry_max_backoff_ms" default:"30000" unit:"ms" help:"Maximum pause between attempts."`
	BackoffMultiplier float64       `yaml:"retry_backoff_multiplier" default:"1.5" range:"1:100" help:"Factor by which the pause grows with each attempt."`
	JitterFactor      float64       `yaml:"retry_jitter_factor" default:"0.2" range:"0:1" help:"Each pause is changed at random by up to this fraction, up or down."`
}

// CircuitBreaker sets the breaker of each rank.
type CircuitBreaker struct {
	Disabled         bool          `yaml:"disable_circuit_breaker" default:"false" help:"Disable circuit breakers."`
	FailureThreshold int           `yaml:"cb_failure_threshold" default:"10" range:"1:1000000" help:"Number of failures within the window after which the breaker opens. Client errors, 429 and overload answers do not count."`
	SuccessThreshold int           `yaml:"cb_success_threshold" default:"3" range:"1:1000000" help:"Number of consecutive successes in the half-open state after which it closes."`
	TimeoutDuration  time.Duration `yaml:"cb_timeout_duration_secs" default:"60" unit:"secs" range:"0.001:" help:"How long it stays open before it becomes half-open and lets a few requests through."`
	WindowDuration   time.Duration `yaml:"cb_window_duration_secs" default:"120" unit:"secs" range:"0.001:" help:"Length of the window: older failures do not count."`
}

// Timeouts holds the limits in time of one request. Zero is "no limit" where
// the help says so.
type Timeouts struct {
	Request        time.Duration `yaml:"request_timeout_secs" default:"1800" unit:"secs" range:"0.001:" help:"Timeout of a whole request, waiting and streaming included; after that it is answered with 504."`
	Connect        time.Duration `yaml:"connect_timeout_secs" default:"5" unit:"secs" range:"0.001:" help:"Timeout of connecting to an engine, TLS included."`
	ResponseHeader time.Duration `yaml:"response_header_timeout_secs" default:"0" unit:"secs" help:"Timeout of an engine's response header, counted from when a connection is ready, the time to send the request included; 0: none, since an engine answers a call that does not stream only when everything is generated."`
	FirstByte      time.Duration `yaml:"first_byte_timeout_secs" default:"0" unit:"secs" help:"Timeout of the first byte of an engine's response body, counted in the same way; 0: none, since that is the time to first token under load."`
	StreamIdle     time.Duration `yaml:"stream_idle_timeout_secs" default:"300" unit:"secs" help:"An engine that is silent for this long in the middle of an answer: a stream ends with an error event, or the request is retried if the client has been sent nothing; 0: no limit. Not for prefill."`
	WorkerIdle     time.Duration `yaml:"worker_idle_timeout_secs" default:"4" unit:"secs" range:"0.001:" help:"A connection to an engine that was idle for this long is not reused. Keep it under the engines' own keep-alive limit, which is 5 s in SGLang and vLLM."`
	ClientHeader   time.Duration `yaml:"client_header_timeout_secs" default:"10" unit:"secs" range:"0.001:" help:"Timeout for a client to send its request header."`
	ClientBody     time.Duration `yaml:"client_body_timeout_secs" default:"30" unit:"secs" range:"0.001:" help:"A client that sends nothing of its request body for this long is answered with 408. The whole body must arrive within request_timeout_secs."`
	ClientIdle     time.Duration `yaml:"client_idle_timeout_secs" default:"120" unit:"secs" range:"0.001:" help:"An idle client connection is closed after this time. Keep it above the idle timeout of a load balancer in front."`
	ClientWrite    time.Duration `yaml:"client_write_timeout_secs" default:"60" unit:"secs" help:"A client that reads nothing for this long, while there is something to send, is disconnected; 0: no limit."`
}

// WorkerType is the role of a worker.
type WorkerType string

// The roles of this version.
const (
	WorkerRegular WorkerType = "regular"
	WorkerPrefill WorkerType = "prefill"
	WorkerDecode  WorkerType = "decode"
)

// Role is the role as the gate knows it. The zero value is regular.
func (t WorkerType) Role() admission.Role {
	switch t {
	case WorkerPrefill:
		return admission.RolePrefill
	case WorkerDecode:
		return admission.RoleDecode
	}
	return admission.RoleRegular
}

// Worker describes one engine: in the list of the configuration, in a request that
// registers it (by the names in the json tags), and in the fleet.
type Worker struct {
	// URL is canonical once loaded: lower-case scheme and host, no default port, no
	// trailing slash.
	URL                 string            `json:"url" yaml:"url" required:"true" help:"Base URL: http or https, with a path where the engine is behind one, or grpc or grpcs with a port and no path for an engine that takes token ids. A final /v1 is left out, with a warning: it belongs to the paths of requests."`
	Type                WorkerType        `json:"worker_type" yaml:"worker_type" choices:"regular|prefill|decode" default:"regular" help:"Role of the worker. prefill and decode require fleet.pd_disaggregation, regular requires that it is off."`
	BootstrapPort       BootstrapPort     `json:"bootstrap_port" yaml:"bootstrap_port" defaultdoc:"what /server_info says, else 8998" help:"Port at which decode finds a prefill worker (SGLang's --disaggregation-bootstrap-port), or none to send null."`
	Backend             string            `json:"backend" yaml:"backend" choices:"auto|sglang|vllm|vllm-grpc" defaultdoc:"auto" help:"Engine of the worker; auto detects it. vllm-grpc is vLLM at a URL with grpc:// or grpcs://."`
	KVConnector         string            `json:"kv_connector" yaml:"kv_connector" choices:"auto|nixl|nixl-push|mooncake|moriio|lmcache|shared-storage|none" defaultdoc:"auto" help:"How a vLLM worker hands KV cache over from prefill to decode. auto: prefill workers are asked with a one-token request; decode workers are assumed to use the connector of their model's prefill workers. Workers with different connectors are never paired."`
	ModelID             string            `json:"model_id" yaml:"model_id" defaultdoc:"fleet.model_id" help:"Model name."`
	APIKey              Secret            `json:"api_key" yaml:"api_key" defaultdoc:"auth.worker_api_key" help:"Key presented to it."`
	APIKeyFile          string            `json:"-" yaml:"api_key_file" fileof:"api_key" help:"File with that key."`
	HTTP2               bool              `json:"-" yaml:"http2" default:"false" help:"Use HTTP/2 to the worker; without TLS (h2c) if its URL is http."`
	Labels              map[string]string `json:"labels" yaml:"labels" help:"Labels that requests can ask for, as a mapping of names to values."`
	TopologyDomain      string            `json:"topology_domain" yaml:"topology_domain" help:"Location of the worker for KV transfers, such as a zone or a rack; see fleet.kv_transfer_topology. All workers without one form one domain."`
	Adapters            []string          `json:"adapters" yaml:"adapters" help:"LoRA adapters that it serves in addition to those it lists in /v1/models."`
	MaxNumBatchedTokens int64             `json:"max_num_batched_tokens" yaml:"max_num_batched_tokens" range:"1:" defaultdoc:"what it tells" help:"Maximum number of tokens in one prefill step, per rank: SGLang's chunked_prefill_size, else max_prefill_tokens. Thresholds that are fractions refer to it."`
	TotalKVBlocks       int64             `json:"total_kv_blocks" yaml:"total_kv_blocks" range:"1:" defaultdoc:"what it tells" help:"Total number of KV blocks, per rank."`
	BlockSize           int64             `json:"block_size" yaml:"block_size" range:"1:65536" defaultdoc:"what it tells" help:"Tokens in one KV block: SGLang's page_size."`
	MaxRunningRequests  int64             `json:"max_running_requests" yaml:"max_running_requests" range:"1:" defaultdoc:"what it tells" help:"Maximum number of requests that run at once, per rank: with as many calls booked on it, pending or active, it gets no others. What a worker reports is no limit; classes go by it where another capacity is not known."`
	PrefillMaxInflight  int64             `json:"prefill_max_inflight_requests" yaml:"prefill_max_inflight_requests" range:"1:" defaultdoc:"prefill_max_inflight_requests_per_worker" help:"Maximum number of requests in prefill on this worker, per rank, in place of admission.prefill_max_inflight_requests_per_worker."`
	Priority            *int              `json:"priority" yaml:"priority" range:"0:1000" defaultdoc:"50" help:"Of the workers with room for a request, those with the highest priority are used; the others only while none of these has room. No request waits for a worker of higher priority."`
	TLS                 WorkerTLS         `json:"-" yaml:"tls" help:"TLS settings for an https or grpcs URL, where the system's certificate authorities are not sufficient."`
	// DPSize overrides the number of data-parallel ranks that the worker names, where
	// fleet.dp_aware is set. Zero: what the worker says.
	DPSize int `json:"dp_size" yaml:"-"`
}

// Bounds of Worker.Priority, which are those of the SGLang model gateway but for the
// highest: it has none.
const (
	DefaultPriority = 50
	MaxPriority     = 1000
)

// WorkerTLS says how a worker's certificate is checked and which one is
// presented to it.
type WorkerTLS struct {
	CAFile             string `yaml:"ca_file" help:"PEM file with the certificate authorities to trust instead of the system's."`
	CertFile           string `yaml:"cert_file" help:"PEM file with the client certificate to present."`
	KeyFile            string `yaml:"key_file" help:"PEM file with its key."`
	ServerName         string `yaml:"server_name" help:"Name against which its certificate is verified, if it is not the URL's host."`
	InsecureSkipVerify bool   `yaml:"insecure_skip_verify" default:"false" help:"Do not verify its certificate. For tests."`
}

// IsZero reports whether nothing is set.
func (t WorkerTLS) IsZero() bool { return t == WorkerTLS{} }

// Addr is the address to serve clients on, as net.Listen takes it.
func (s Server) Addr() string { return net.JoinHostPort(s.Host, strconv.Itoa(s.Port)) }

// PrometheusAddr is the address to serve metrics on, as net.Listen takes it.
func (s Server) PrometheusAddr() string {
	return net.JoinHostPort(s.PrometheusHost, strconv.Itoa(s.PrometheusPort))
}

// Default is the configuration without flags, environment and file.
func Default() *Config {
	cfg, _, err := Load(nil, nil, nil)
	if err != nil {
		panic("BUG: the defaults are refused: " + err.Error())
	}
	return cfg
}

// MustBeComplete panics if a setting is zero that cannot be set to zero. Parts call
// it instead of having defaults of their own: a setting has one, in the schema.
func (c *Config) MustBeComplete() {
	if c == nil {
		panic("BUG: there is no configuration")
	}
	root := reflect.ValueOf(c).Elem()
	schema().walk(func(o *option) {
		if root.FieldByIndex(o.index).IsZero() && !o.zeroAllowed() {
			panic("BUG: " + o.path + " is not set")
		}
	})
}

// Origin of a setting, by its path (as in "server.port"): which source it came
// from. The workers are one setting, "workers".
func (c *Config) Origin(path string) Origin { return c.origins[path] }
