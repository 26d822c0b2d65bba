"""The sentences that `generated` fills in, and the words it fills them with.

Nobody said any of this.  Some of it is ambiguous on purpose (Paris may be called or flown to,
Chicago heard or visited, "set" and "add" open several intents), so that there is something to
learn.  Values that are made of two lists come by the hundred: many are in one utterance only,
which is what a model may remember of it.
"""

from __future__ import annotations

from itertools import product

# intent -> sentences; {slot} or {slot:values} where the values are another slot's
TEMPLATES: dict[str, tuple[str, ...]] = {
    "play_music": (
        "play {song} by {artist}",
        "play some {genre}",
        "put on {artist}",
        "i want to hear {song}",
        "play the playlist {playlist} in the {room}",
        "play something by {artist}",
    ),
    "get_weather": (
        "what is the weather in {city} {date}",
        "will there be {condition} in {city} {date}",
        "how is the weather {date}",
        "do i need to expect {condition} on my way to {city}",
        "{city} forecast for {date}",
    ),
    "set_alarm": (
        "set an alarm for {time}",
        "wake me up at {time} {date}",
        "set the alarm in the {room} to {time}",
        "get me up {date} at {time}",
    ),
    "book_flight": (
        "book a flight from {from_city:city} to {to_city:city} {date}",
        "i need to fly to {to_city:city} {date}",
        "find me a seat on {airline} from {from_city:city} to {to_city:city}",
        "get two tickets to {to_city:city} on {airline} {date}",
        "fly me from {from_city:city} to {to_city:city} after {time}",
    ),
    "send_message": (
        "tell {contact} that {message}",
        "send {contact} the message {message}",
        "text {contact} {message}",
        "let {contact} know {message}",
    ),
    "call_contact": (
        "call {contact}",
        "ring {contact} at {time}",
        "get me {contact} on the phone",
        "phone {contact} {date}",
    ),
    "set_reminder": (
        "remind me to buy {item} {date}",
        "set a reminder for {date} to call {contact}",
        "remind me at {time} that {message}",
        "do not let me forget the {item}",
    ),
    "add_to_list": (
        "add {item} to my shopping list",
        "put {quantity} {item} on the list",
        "we need {quantity} {item}",
        "add {quantity} {item} to the list",
    ),
    "add_to_playlist": (
        "add {song} to {playlist}",
        "put {artist} on the playlist {playlist}",
        "add {song} by {artist} to my playlist {playlist}",
        "save this to {playlist}",
    ),
    "set_timer": (
        "set a timer for {duration}",
        "start a {duration} timer",
        "count down {duration}",
        "set the timer in the {room} to {duration}",
    ),
    "control_light": (
        "turn the light in the {room} {color}",
        "set the {room} to {color}",
        "make the {room} {color} at {time}",
        "switch off the {room} lights",
    ),
    "book_restaurant": (
        "book a table for {party_size} at a {cuisine} place in {city}",
        "find {cuisine} food in {city}",
        "reserve a table for {party_size} {date} at {time}",
        "get us a {cuisine} dinner for {party_size} at {time}",
    ),
    "flight_status": (
        "is the {airline} flight to {to_city:city} on time",
        "when does the flight from {from_city:city} land",
        "has the {time} flight from {from_city:city} to {to_city:city} left",
        "status of the {airline} plane from {from_city:city}",
    ),
    "cancel_alarm": (
        "cancel the alarm for {time}",
        "turn the {time} alarm off",
        "delete all alarms {date}",
        "i do not need the alarm {date}",
    ),
}

OPENINGS = ("", "please", "hey", "can you", "could you please", "okay now", "i said", "um")
CLOSINGS = ("", "please", "thanks", "now", "for me", "if you can")

_CITIES = """paris;boston;new york;chicago;london;san francisco;berlin;madrid;rome;denver;oslo;
    los angeles;dallas;vienna;lisbon;dublin;cairo;mexico city;tokyo;buenos aires;lima;sydney;
    cape town;hong kong;delhi;new orleans;austin;prague;warsaw;las vegas;athens;seoul;nice;
    salt lake city;orlando;helsinki;geneva;florence;phoenix;jackson"""
_FIRST = """mom;dad;anna;paris;jack;may;austin;maria;tom;lee;rosa;omar;grace;ivan;nina;peter;june;
    carlos;emma;dallas;lucy;hassan;mei;john;sofia;april;florence;victor;ruth;jackson"""
_LAST = """smith;garcia;chen;brown;okafor;novak;rossi;silva;kim;london;weber;young;costa;ali;berg;
    moreau;king;patel;jones;rivera;sato;lopez;white;day;walker;stone;fischer;west;hill;cook"""
_ADJECTIVES = """blue;lonely;golden;wild;broken;silent;sweet;cold;last;electric;paper;endless;new;
    red;midnight;summer;heavy;secret;little;burning;crystal;hollow;easy;distant;velvet;rainy;
    slow;purple;sunday;empty"""
_NOUNS = """river;heart;road;moon;dream;city;rain;fire;morning;boston;train;garden;shadow;letter;
    weather;ocean;alarm;mirror;flight;sky;story;angel;light;winter;dance;radio;stranger;bird;
    bridge;kitchen"""
_GROUPS = """wolves;echoes;sisters;engines;strangers;kings;gardeners;sparrows;tigers;lanterns;
    pilots;travelers;neighbors;saints;robots;foxes;giants;sailors;ghosts;brothers"""
_SUBJECTS = "i;we;the kids;mom;anna and i;my brother;nobody;the train;your package;they"
_PREDICATES = """will be late;can not come tonight;arrived in boston;got home;forgot the keys;
    need more milk;left at noon;made dinner;found a hotel;lost the phone;are on the way;
    said yes;missed the flight;want to leave early;have the tickets"""
_MONTHS = (
    """january;february;march;april;may;june;july;august;september;october;november;december"""
)
_DAYS = "monday;tuesday;wednesday;thursday;friday;saturday;sunday"


def _listed(text: str) -> list[str]:
    return [" ".join(value.split()) for value in text.split(";")]


def _joined(*parts: list[str]) -> list[str]:
    """All combinations, far apart in the alphabet: the first ones are drawn most often."""
    every = [" ".join(words) for words in product(*parts)]
    return [every[place * 617 % len(every)] for place in range(len(every))]  # 617 is prime


_HOURS = [str(hour) for hour in range(1, 13)]
_NUMBERS = _listed("two;three;four;five;six;ten;a dozen;twenty;eight;fifteen")

VALUES: dict[str, list[str]] = {
    "city": _listed(_CITIES),
    "contact": _listed(_FIRST) + _joined(_listed(_FIRST), _listed(_LAST)),
    "song": _joined(_listed(_ADJECTIVES), _listed(_NOUNS)),
    "artist": _listed("chicago;boston;queen;prince;the police;kansas;nina stone;heart;blondie")
    + _joined(["the"], _listed(_ADJECTIVES), _listed(_GROUPS)),
    "playlist": _joined(
        _listed(_ADJECTIVES), _listed("mix;hits;party;mood;workout;road trip;mornings")
    ),
    "genre": _listed("jazz;rock;blues;hip hop;folk;opera;country;drum and bass;soul;heavy metal"),
    "message": _joined(_listed(_SUBJECTS), _listed(_PREDICATES)),
    "date": _listed("tomorrow;today;tonight;this weekend;next week")
    + _joined(["on", "this", "next"], _listed(_DAYS))
    + _joined(_listed(_MONTHS), [str(day) for day in range(1, 29)]),
    "time": _listed("noon;midnight;half past six;quarter to nine")
    + _joined(_HOURS, ["am", "pm"])
    + _joined(_HOURS, ["15", "30", "45"], ["am", "pm"]),
    "duration": [*_joined(_NUMBERS, ["minutes", "seconds", "hours"]), "half an hour", "an hour"],
    "quantity": _NUMBERS + _joined(_NUMBERS, ["bags of", "boxes of", "pounds of"]),
    "item": _listed(
        "milk;eggs;bread;coffee;paper towels;rice;apples;dog food;red wine;tickets;olive oil;"
        "cheese;batteries;flowers;green tea;potatoes;soap;orange juice;pasta;chicken"
    ),
    "party_size": _listed("two;three;four;five;six;eight;ten;a dozen;me and my wife"),
    "cuisine": _listed("thai;italian;mexican;indian;french;greek;korean;soul food;vegan;chinese"),
    "room": _listed("kitchen;bedroom;living room;garage;office;hall;garden;kids room;bathroom"),
    "color": _listed("blue;red;warm white;green;purple;orange;dark blue;bright;half as bright"),
    "airline": _listed("delta;united;air france;alaska;lufthansa;emirates;southwest;iberia"),
    "condition": _listed("rain;snow;fog;heavy rain;wind;sun;ice;thunder;a storm"),
}
